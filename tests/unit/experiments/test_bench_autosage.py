"""AutoSAGE's tables on tiny graphs: every arm and ablation, hub thresholds, and detection of a wrong kernel."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments.autosage import HubRows, bench_autosage
from sparloom.ops import SpMM, assert_close
from sparloom.platforms import SpmmKernels
from sparloom.platforms.cpu_kernels import BoundRows
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

TINY = ("corpus.scale=0.003", "task.candidates=2", "task.shares=[0.03,0.5]", "task.iterations=1", "task.least_rows=64",
        "task.hub_width=8", "task.hub_graphs=[hub_split]", "task.hub_quantiles=[0.9]",
        "task.vector_graphs=[products_like]", "timing.repetitions=2", "timing.most_repetitions=2",
        "timing.short_seconds=0", "timing.retakes=0",
        "timing.steal_ratio=100")


class Zeros(SpmmKernels):
    """Kernels that forget to add."""

    def bind(self, operands, config, result):
        return lambda: result.fill(0)


def overridden(task, **tables_of):
    return bench_autosage.BenchAutosage(**{**vars(task), "tables": tables_of})


def test_tiny_graphs_give_a_row_for_every_arm_and_ablation(build, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_autosage, "NARROW", None)  # the kernels that are compiled anyway
    task = overridden(build("bench_autosage", *TINY, folder=tmp_path),
                      hub_split={"spmm": [8], "sddmm": [8], "attention": [8]}, products_like={"spmm": [8]})
    metrics = task.run(tmp_path)
    assert json.dumps(metrics, allow_nan=False)
    decisions = pd.read_parquet(tmp_path / "decisions.parquet")
    arms = decisions[(decisions["kind"] == "arm") & (decisions["baseline"] == "vendor")]
    assert (arms.groupby(["op", "matrix"])["name"].nunique() == 5).all()
    assert len(arms) == 4 * 5
    assert set(decisions["baseline"]) == {"vendor", "default"}
    assert set(decisions.loc[decisions["kind"] == "share", "name"]) == {"0.03", "0.5", "1"}
    assert set(decisions.loc[decisions["kind"] == "alpha", "name"]) == {"0.8", "0.9", "0.95", "0.98", "1"}
    assert set(decisions.loc[decisions["kind"] == "hub", "name"]) == {"never", "q90", "always"}
    assert (decisions["regret"] >= 1).all()
    assert (decisions["scale"] == 0.003).all()
    whole = pd.read_parquet(tmp_path / "whole.parquet")
    assert {"vendor", "default", "candidate", "hub"} <= set(whole["role"])
    assert set(pd.read_parquet(tmp_path / "probes.parquet")["sample"]) == {"subgraph", "rows"}
    assert (pd.read_parquet(tmp_path / "tuned.parquet")["first_seconds"] > 0).all()
    assert metrics["hub/spmm/hub_split/never"] == 1
    assert metrics["vectors/products_like/8"] > 0
    assert {"spmm/hub_split/8/autosage", "share/rows/0.5/wrong", "over_default/alpha/all/0.95/accepted"} <= set(metrics)
    for name in ("speedups", "ablations"):
        assert (tmp_path / f"{name}.png").stat().st_size > 0
    assert not list((tmp_path / "artifacts" / "bench_autosage").iterdir())


def test_a_wrong_kernel_stops_the_bench(build, tmp_path, monkeypatch):
    task = overridden(build("bench_autosage", *TINY, folder=tmp_path), hub_split={"spmm": [8]})
    monkeypatch.setattr(bench_autosage, "SPARSE_FAMILIES", {"spmm": Zeros})
    with pytest.raises(AssertionError, match=r"balance=.* is wrong"):
        task.run(tmp_path)


def test_graphs_are_halved_until_they_fit(build, tmp_path):
    task = build("bench_autosage", folder=tmp_path)
    assert {graph: task._scale(graph) for graph in task.tables} == {
        "erdos_renyi": 1, "hub_skew": 1, "hub_split": 1, "reddit_like": 1 / 4, "products_like": 1 / 8}
    with pytest.raises(MemoryError, match="memory_bytes=10 at any scale: raise it"):
        bench_autosage.BenchAutosage(**{**vars(task), "memory_bytes": 10})._scale("hub_split")


def pattern_with_hubs() -> Pattern:
    lengths = np.array([3, 900, 0, 5, 400, 2, 40, 40, 40, 1])
    indices = np.concatenate([np.arange(length) for length in lengths])
    return Pattern((lengths.size, 1000), np.concatenate([[0], np.cumsum(lengths)]), indices)


def cut_rows(bound: BoundRows, pattern: Pattern) -> set[int]:
    rows, nonzeros = bound.pieces.rows, bound.pieces.nonzeros
    return {int(row) for row, begin in zip(rows[:-1], nonzeros[:-1], strict=True) if begin > pattern.indptr[row]}


@pytest.mark.parametrize(("least", "cut"), [(0, {1, 4}), (500, {1}), (math.inf, set())])
def test_only_hub_rows_are_shared_by_threads(least, cut):
    pattern = pattern_with_hubs()
    bound = HubRows(least).bind(pattern, order="natural", balance="nonzeros", threads=2)
    assert cut_rows(bound, pattern) == cut
    assert bound.pieces.cut == bool(cut)
    assert (np.diff(bound.pieces.rows) >= 0).all()
    assert (np.diff(bound.pieces.nonzeros) >= 0).all()
    assert bound.pieces.nonzeros[[0, -1]].tolist() == [0, pattern.nnz]


@pytest.mark.parametrize("least", [0, 500, math.inf])
def test_products_do_not_depend_on_the_threshold(least):
    pattern = pattern_with_hubs()
    values = np.random.default_rng(0).random(pattern.nnz, dtype=np.float32)
    operands = SpMM().operands(SparseMatrix(pattern, values), 512, 0)
    family = SpmmKernels(2, 512, rows=HubRows(least))
    result = family.result(operands)
    result.fill(np.nan)
    family.bind(operands, next(iter(family.space())).replace(balance="nonzeros"), result)()
    assert_close(result, SpMM().oracle(operands), terms=SpMM().terms(pattern, 512), scale=SpMM().scale(operands))
