"""Input-aware operations beside their peers, on tiny cases: outputs, and resuming a killed run."""

import json
import operator
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import sparloom
from sparloom.baselines import SPARSE_BASELINES
from sparloom.errors import Unsupported
from sparloom.experiments import BenchDispatch
from sparloom.experiments.autosage import BoundMethod, DispatchCase, ReferenceRows, call_cases, check_own
from sparloom.experiments.autosage import cpu_cases as dispatch_score
from sparloom.experiments.autosage import graph_training as sage_training
from sparloom.experiments.harness import peak_bytes, side_by_side
from sparloom.measure import TimingProtocol
from sparloom.ops import SDDMM, CsrAttention, SpMM, assert_rows_close
from sparloom.platforms import CpuKernels, Roof
from sparloom.report import MAKING
from sparloom.sparse import Pattern, SparseMatrix, SyntheticCorpus
from sparloom.tuning.sparse import CpuBackend

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "processes_loaded")]
TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)
OPS = {"spmm": SpMM(), "sddmm": SDDMM(), "attention": CsrAttention(2)}


@pytest.fixture(autouse=True, scope="module")
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def ones(rows=70, cols=50):
    dense = np.random.default_rng(0).random((rows, cols)) < 0.1
    dense[[0, 3]] = False
    pattern = Pattern.from_coo(*np.nonzero(dense), dense.shape)
    return SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(("op", "name"), [(op, name) for op, peers in SPARSE_BASELINES.items() for name in peers])
def test_peers_compute_what_we_do(op, name):
    operands = OPS[op].operands(ones(), 24, seed=0)
    try:
        call = SPARSE_BASELINES[op][name](operands, 1)
    except Unsupported as error:
        pytest.skip(str(error))
    expected = CpuKernels(1, 24).run(OPS[op], operands, CpuKernels(1, 24).baseline(OPS[op], None))
    assert_rows_close(np.asarray(call()), expected, OPS[op], operands)


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, peers in SPARSE_BASELINES.items() for name in peers])
def test_peers_allocate_their_results_exactly_if_they_are_listed_so(op, name):
    operands = OPS[op].operands(ones(), 24, seed=0)
    try:
        call = SPARSE_BASELINES[op][name](operands, 1)
    except Unsupported as error:
        pytest.skip(str(error))
    first, second = np.asarray(call()), np.asarray(call())
    assert np.may_share_memory(first, second) == (name not in MAKING)
    assert name in MAKING or first.ctypes.data % 4096 == 0


def test_a_peak_is_the_memory_of_a_call():
    assert 30e6 < peak_bytes(lambda: np.ones(40 << 20, np.uint8)) < 60e6


def test_a_peak_is_the_same_where_freed_memory_is_kept():
    script = """
import numpy as np
from sparloom.models import retain_memory
from sparloom.experiments.harness.timing import peak_bytes
assert retain_memory()
for _ in range(3):
    np.ones(80 << 20, np.uint8)
print(peak_bytes(lambda: np.ones(40 << 20, np.uint8)))
"""  # of a process of its own: memory is retained for good
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert 30e6 < int(told.stdout) < 60e6


def bench(tmp_path, **changes) -> BenchDispatch:
    settings = {
        "corpus": SyntheticCorpus([200], 1, 0, ["uniform", "hub_rows", "nearest"]), "count": 2,
        "ops": {op: [8] for op in ("spmm", "sddmm", "attention")}, "heads": 2, "explored": 1, "explored_widths": [8],
        "timing": TIMING, "threads": 1, "memory_bytes": 1e9,
        "journals": str(tmp_path / "journals"), "seed": 0}
    return BenchDispatch(**settings | changes)


def test_layers_and_other_products_are_timed_beside_their_peers(tmp_path):
    """Also memory of layers, and the bound of every product."""
    pytest.importorskip("torch_geometric")
    layers, calls = ("gcn_steps", "gin_steps", "gat_steps", "gatv2_steps"), tuple(call_cases.CALLS)
    ops = {op: [8] for op in (*layers, *calls, "spmm_float64", "spmm_bfloat16")}
    (tmp_path / "out").mkdir()
    metrics = bench(tmp_path, ops=ops, corpus=SyntheticCorpus([200], 1, 0, ["uniform"])).run(tmp_path / "out")
    rows = pd.read_parquet(tmp_path / "out" / "per_case.parquet")
    timed = rows[rows["median"].notna()].groupby("op")["method"].agg(set)
    assert timed["spmm_bfloat16"] == {"sparloom", "sparloom_new", "float32"}
    assert timed["spmm_float64"] >= {"sparloom", "scipy", "torch"}
    assert rows[rows["op"].isin(["spmm_float64", "spmm_bfloat16"]) & (rows["method"] == "sparloom")][
        "bound_seconds"].gt(0).all()
    for op in calls:
        assert timed[op] >= {"sparloom", "torch_mm" if op != "spmm_gradient" else "torch_int64"}
    for op in layers:
        assert timed[op] >= {"sparloom", "pyg_edge_index"}
        assert rows[(rows["op"] == op) & rows["median"].notna()]["peak_bytes"].gt(0).all()
        assert 0 < metrics[f"{op}/memory_share"] <= 1.001 * metrics[f"{op}/memory_share_max"]
    assert {f"{op}/all/over_best" for op in ops} <= set(metrics)


@pytest.mark.parametrize("op", ["spmm", "spmm_float64", "spmm_bfloat16"])
def test_wrong_products_are_not_timed(tmp_path, monkeypatch, op):
    monkeypatch.setattr(SpMM, "oracle", lambda self, given: np.zeros((given.matrix.pattern.rows, 8)))
    with pytest.raises(AssertionError, match="element"):
        scoring(tmp_path).score(DispatchCase(op, "a", 8), ones())


@pytest.mark.parametrize(("op", "module"), [
    ("spmm_fresh", "sparloom.spmm"), ("spmm_torch", "sparloom.nn.spmm"), ("spmm_gradient", "sparloom.nn.spmm")])
def test_wrong_calls_are_not_timed(tmp_path, monkeypatch, op, module):
    right = operator.attrgetter(module.removeprefix("sparloom."))(sparloom)
    monkeypatch.setattr(module, lambda *given, **options: 2 * right(*given, **options))
    with pytest.raises(AssertionError, match=r"sparloom is wrong: results are 1\.0e"):
        scoring(tmp_path).score(DispatchCase(op, "a", 8), ones())


def test_every_step_is_written_and_reduced(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench(tmp_path).run(out)
    scored, decided, candidates = (pd.read_parquet(out / f"{name}.parquet")
                                   for name in ("per_case", "decisions", "candidates"))
    assert scored.groupby("op")["matrix"].nunique().to_dict() == {"spmm": 2, "sddmm": 2, "attention": 2}
    for op, peers in SPARSE_BASELINES.items():
        rows_of = scored[scored["op"] == op]
        timed = set(rows_of.loc[rows_of["median"].notna(), "method"])
        refused = rows_of["failure"].astype(str).str.startswith("Unsupported: ")  # libraries that are not installed
        assert timed >= {"sparloom", "sparloom_new", "call", "tuned", "kernel"}
        assert timed | set(rows_of.loc[refused, "method"]) >= set(peers)
    assert decided.groupby("way").size().to_dict() == {"default": 6, "prepared": 6, "tuned": 6}
    assert set(decided.loc[decided["way"] == "tuned", "origin"]) == {"measured"}
    decided = decided[decided["matrix"].isin(candidates["matrix"])]
    assert set(candidates["method"]) >= set(decided["choice"])
    assert {"spmm/small/over_best", "replay_overhead_us", "regret", "spmm/regret",
            "ways/tuned/regret", "ways/prepared/sddmm/regret", "default_over_tuned_min", "spmm/prepared_over_tuned",
            "sddmm/all/call_over_best"} <= metrics.keys()
    assert all(np.isfinite(value) for value in metrics.values())
    assert {f"{op}/all/{name}" for op in SPARSE_BASELINES for name in (
        "cases", "over_best_min", "over_best_low", "share_of_bound", "share_of_bound_min")} <= metrics.keys()
    assert (scored["bound_seconds"] > 0).equals(scored["median"].notna())
    assert set(scored["bound_by"].dropna()) <= {"flops", "L2", "L3", "memory", "nan"}
    assert Roof.from_json(json.loads((out / "roof.json").read_text())).threads == 1
    assert (out / "regret.png").stat().st_size > 0
    assert not list((tmp_path / "journals").glob("*"))


@pytest.mark.parametrize(("changes", "rows"), [
    ({"ops": {"spmm": [8]}, "explored": 0}, {"per_case": True, "decisions": True, "candidates": False}),
    ({"ops": {"sage_training": [8]}}, {"per_case": True, "decisions": False, "candidates": False}),
], ids=["nothing_explored", "only_training"])
def test_tables_without_rows_have_their_columns(tmp_path, changes, rows):
    if "sage_training" in changes["ops"]:
        pytest.importorskip("torch_geometric")
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench(tmp_path, **changes).run(out)
    for name, some in rows.items():
        table = pd.read_parquet(out / f"{name}.parquet")
        assert {"op", "matrix", "width", "nnz"} <= set(table)
        assert bool(len(table)) == some
    assert metrics
    assert all(np.isfinite(value) for value in metrics.values())


def test_variables_that_change_decisions_are_refused_before_all_work(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOSAGE_PROBE_FRAC", "0.5")
    with pytest.raises(ValueError, match=r"AUTOSAGE_PROBE_FRAC: .* unset"):
        bench(tmp_path).run(tmp_path)
    assert not list(tmp_path.iterdir())


def scoring(tmp_path) -> dispatch_score.DispatchBench:
    return dispatch_score.DispatchBench(timing=TIMING, threads=1, heads=2, memory_bytes=1e9, plans=tmp_path / "plans",
                                        seed=0)


def test_a_tuned_matrix_is_measured_once(tmp_path):
    matrix, case = ones(), DispatchCase("spmm", "a", 8)
    first, again = ([row for row in scoring(tmp_path).score(case, matrix) if row.get("way") == "tuned"]
                    for _ in range(2))
    assert first == again
    assert first[0]["decision_seconds"] > 0


def test_a_wrong_method_of_ours_ends_the_run():
    operands = OPS["spmm"].operands(ones(), 8, seed=0)
    known = ReferenceRows(OPS["spmm"], operands, CpuBackend(1))
    right = OPS["spmm"].oracle(operands).astype(np.float32)
    out = np.zeros_like(right)
    check_own({"new": BoundMethod(right.copy), "into": BoundMethod(lambda: out.__setitem__(..., right), out)}, known)
    with pytest.raises(AssertionError, match="idle is wrong: infinite or NaN"):
        check_own({"idle": BoundMethod(lambda: out, out)}, known)
    with pytest.raises(AssertionError, match="kernel is wrong: element"):
        check_own({"kernel": BoundMethod(lambda: right + np.float32(1e-3))}, known)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, ValueError])
def test_a_peer_that_fails_is_noted_and_the_others_are_timed(tmp_path, monkeypatch, error):
    def broken(operands, threads):
        raise error("no memory")

    monkeypatch.setattr(dispatch_score, "SPARSE_BASELINES", {"spmm": {**SPARSE_BASELINES["spmm"], "torch": broken}})
    rows = {row["method"]: row for row in scoring(tmp_path).score(DispatchCase("spmm", "a", 8), ones())
            if "method" in row}
    assert rows["torch"] == {"method": "torch", "failure": f"{error.__name__}: no memory"}
    assert all("median" in rows[name] for name in ("sparloom", "sparloom_new", "call", "tuned", "kernel", "scipy"))


def test_only_peers_far_slower_than_the_fastest_peer_are_not_timed_in_turn(monkeypatch):
    calls, spent = {"own": 0, "fast": 0, "near": 0, "slow": 0, "late": 0}, {"fast": 2e-3, "near": 6e-3, "slow": 0.1}
    now = [0.0]
    monkeypatch.setattr("sparloom.experiments.harness.timing.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call(name):
        def run():
            calls[name] += 1
            if name == "late":
                raise RuntimeError("out of memory")
            now[0] += spent.get(name, 0)
        return run

    failed = {}
    taken = side_by_side({"own": call("own")}, {name: call(name) for name in ("slow", "near", "fast", "late")}, failed,
                         replace(TIMING, slow_factor=6.0), threads=1)
    assert {name: len(each.seconds) for name, each in taken.items()} == {"own": 2, "near": 2, "fast": 2, "slow": 1}
    assert calls["slow"] == 2
    assert taken["slow"].seconds[0] == pytest.approx(0.1)
    assert failed == {"late": "RuntimeError: out of memory"}


def test_training_stores_nothing_for_the_user(tmp_path, monkeypatch):
    pytest.importorskip("torch_geometric")
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path / "user"))
    corpus = SyntheticCorpus([200], 1, 0, ["uniform"])
    rows = scoring(tmp_path).score(DispatchCase("gcn_steps", "a", 8), corpus.load(corpus.entries()[0].name))
    assert {"sparloom", "pyg_edge_index"} <= {row["method"] for row in rows if "median" in row}
    assert not (tmp_path / "user" / "plans").exists()
    assert "AUTOSAGE_CACHE_DIR" not in os.environ


def test_deviating_training_raises_for_our_layers_and_is_noted_for_peers(monkeypatch):
    pytest.importorskip("torch_geometric")
    corpus = SyntheticCorpus([200], 1, 0, ["uniform"])
    pattern, propagated = corpus.load(corpus.entries()[0].name).pattern, sage_training._propagated

    def failing(layer, graph, features):
        if isinstance(graph, torch.Tensor) and graph.layout == torch.strided:
            raise MemoryError("of edges")
        return propagated(layer, graph, features)

    monkeypatch.setattr(sage_training, "_propagated", failing)
    steps = sage_training.sage_aggregations(pattern, 8, seed=0)
    assert steps.refused["pyg_edge_index"] == "MemoryError: of edges"
    assert list(steps.own) == ["sparloom"]
    assert "pyg_csr" in steps.baselines
    monkeypatch.undo()
    monkeypatch.setattr(sage_training, "spmm", lambda means, features: 2 * features)
    with pytest.raises(AssertionError, match=r"sparloom is wrong: means or gradients .* pyg_edge_index"):
        sage_training.sage_aggregations(pattern, 8, seed=0)
