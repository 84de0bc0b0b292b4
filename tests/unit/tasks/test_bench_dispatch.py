"""Input-aware operations beside their peers, on tiny cases: what is written, and that a killed run goes on."""

import numpy as np
import pandas as pd
import pytest
import torch

from sparloom.dispatch.csr import CsrPolicy
from sparloom.errors import Unsupported
from sparloom.measure import TimingProtocol
from sparloom.ops import SDDMM, CsrAttention, SpMM, assert_rows_close
from sparloom.platforms import CpuKernels
from sparloom.report import decision_regret, dispatch_metrics
from sparloom.sparse import Pattern, SparseMatrix, SyntheticCorpus
from sparloom.tasks import BenchDispatch, DecisionWay, bench_dispatch
from sparloom.tasks.peak_memory import peak_bytes
from sparloom.tasks.sparse_peers import SPARSE_PEERS

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]
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


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, peers in SPARSE_PEERS.items() for name in peers])
def test_peers_compute_what_we_do(op, name):
    operands = OPS[op].operands(ones(), 24, seed=0)
    try:
        call = SPARSE_PEERS[op][name](operands, 1)
    except Unsupported as error:
        pytest.skip(str(error))
    expected = CpuKernels(1, 24).run(OPS[op], operands, CpuKernels(1, 24).baseline(OPS[op], None))
    assert_rows_close(np.asarray(call()), expected, OPS[op], operands)


def test_results_that_differ_are_told_apart():
    operands = OPS["spmm"].operands(ones(), 8, seed=0)
    kernels = CpuKernels(1, 8)
    right = kernels.run(OPS["spmm"], operands, kernels.baseline(OPS["spmm"], None))
    wrong = right.copy()
    wrong[-1, 2] += 1e-3
    with pytest.raises(AssertionError, match="element"):
        assert_rows_close(wrong, right, OPS["spmm"], operands)
    wrong[-1, 2] = np.nan
    with pytest.raises(AssertionError, match="infinite or NaN"):
        assert_rows_close(wrong, right, OPS["spmm"], operands)
    assert_rows_close(wrong, wrong.copy(), OPS["spmm"], operands)


def test_a_peak_is_what_a_call_takes():
    assert 30e6 < peak_bytes(lambda: np.ones(40 << 20, np.uint8)) < 60e6


def test_memory_that_something_else_gives_back_meanwhile_does_not_hide_a_peak():
    others = [np.ones(80 << 20, np.uint8)]

    def call():
        others.clear()
        np.ones(40 << 20, np.uint8)

    assert 30e6 < peak_bytes(call) < 60e6


def bench(tmp_path, **changes) -> BenchDispatch:
    policy = CsrPolicy(least_seconds=0.0, runs=1e6)
    settings = {
        "corpus": SyntheticCorpus([200], 1, 0, ["uniform", "hub_rows", "nearest"]), "count": 2,
        "ops": {op: [8] for op in ("spmm", "sddmm", "attention")}, "heads": 2, "explored": 1, "explored_widths": [8],
        "repeats": 2,
        "ways": {"full": DecisionWay(CsrPolicy(calibrate="full")), "all": DecisionWay(policy, "all"),
                 "trees": DecisionWay(policy, "trees", ["nowhere"])}, "policy": policy, "timing": TIMING, "threads": 1,
        "memory_bytes": 1e9, "journals": str(tmp_path / "journals"), "seed": 0}
    return BenchDispatch(**settings | changes)


def test_every_step_is_written_and_reduced(tmp_path, caplog):
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench(tmp_path).run(out)
    scored, decided, candidates = (pd.read_parquet(out / f"{name}.parquet")
                                   for name in ("per_case", "decisions", "candidates"))
    assert scored.groupby("op")["matrix"].nunique().to_dict() == {"spmm": 2, "sddmm": 2, "attention": 2}
    for op, peers in SPARSE_PEERS.items():
        methods = set(scored.loc[(scored["op"] == op) & scored["median"].notna(), "method"])
        assert methods >= {"sparloom", "sparloom_new", *peers} - {"mkl"}
    assert decided.groupby("way").size().to_dict() == {"": 6, "default": 6, "full": 3, "all": 3}
    assert "the way trees is left out: nowhere is not there" in caplog.text
    assert "python run.py experiment=fit_trees makes it" in caplog.text
    assert set(candidates["method"]) >= set(decided["choice"])
    assert {"spmm/small/over_best", "replay_overhead_us", "attention/memory_share", "regret", "spmm/regret",
            "ways/full/regret", "ways/all/sddmm/regret", "ways/all/seconds_median", "ways/all/runs_median",
            "stable_share"} <= metrics.keys()
    assert all(np.isfinite(value) for value in metrics.values())
    assert (out / "regret.png").stat().st_size > 0
    assert not list((tmp_path / "journals").glob("*"))


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    given = bench(tmp_path, ops={"spmm": [8]})
    monkeypatch.setattr(bench_dispatch, "dispatch_metrics", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        given.run(out)
    monkeypatch.undo()
    before = pd.read_parquet(out / "per_case.parquet")
    given.run(out)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "per_case.parquet"), before)


def rows(values):
    return pd.DataFrame([{"op": "spmm", "matrix": matrix, "width": 64, "nnz": 1, "method": method, "median": seconds,
                          "seconds": [seconds] * 4} for matrix, method, seconds in values])


def decided(choices):
    return pd.DataFrame([{"op": "spmm", "matrix": "a", "width": 64, "way": way, "repeat": repeat, "choice": choice,
                          "origin": "measured", "decision_seconds": 9e-3} for way, repeat, choice in choices])


def test_metrics_say_what_they_are_called():
    scored = rows([("a", "sparloom", 1e-3), ("a", "sparloom_new", 2e-3), ("a", "kernel", 1e-3), ("a", "mkl", 2e-3),
                   ("a", "torch", 3e-3), ("b", "sparloom", 1e-4), ("b", "sparloom_new", 1e-4), ("b", "kernel", 0.9e-4),
                   ("b", "mkl", 0.5e-4), ("b", "torch", 4e-4)])
    told = decided([("", 0, "x"), *(("default", repeat, "x" if repeat else "y") for repeat in range(10))])
    found = dispatch_metrics(scored, told, rows([("a", "x", 1.0), ("a", "y", 1.5)]), seed=0)
    assert found["spmm/cases"] == 1
    assert found["spmm/over_best"] == pytest.approx(2)
    assert found["spmm/over_torch"] == pytest.approx(3)
    assert found["spmm/new_over_best"] == pytest.approx(1)
    assert found["spmm/small/over_best"] == pytest.approx(0.5)
    assert found["replay_overhead_us"] == pytest.approx(10)
    assert found["probe_share_median"] == pytest.approx(0.09)
    assert found["probe_runs_max"] == pytest.approx(9)
    assert found["regret"] == pytest.approx(1.5)
    assert found["stable_share"] == 1
    shaken = decided([("default", repeat, "xy"[repeat % 2]) for repeat in range(10)])
    assert dispatch_metrics(scored, pd.concat([told.iloc[:1], shaken]), rows([("a", "x", 1.0), ("a", "y", 1.5)]),
                            seed=0)["stable_share"] == 0


@pytest.mark.parametrize("kept", [list, np.array], ids=["in_memory", "as_parquet_gives_it"])
def test_the_best_candidate_is_chosen_by_other_repetitions_than_it_is_judged_by(kept):
    candidates = rows([("a", "x", 1.0), ("a", "y", 1.0)])
    candidates["seconds"] = [kept([0.5, 2.0, 0.5, 2.0]), kept([1.0, 1.0, 1.0, 1.0])]
    judged = decision_regret(candidates, decided([("default", 0, "y")]))
    assert judged["regret"].tolist() == [0.5]
