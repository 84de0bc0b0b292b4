"""The benchmark of compiled functions on small matrices: all methods agree and have ratios."""

import json

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments.fusion import bench_fuse, fuse_metrics

pytestmark = pytest.mark.cc


def test_compiled_functions_agree_with_executors_and_libraries(build, tmp_path):
    task = build("bench_fuse", "timing=quick", "corpus.scale=0.002", "task.programs=[chebyshev,layer,transposed]",
                 "task.widths=[16]", "task.columns=[2]", "timing.steal_ratio=100", "task.threads=1", folder=tmp_path)
    kept = task.corpus.entries()[:2]
    task.corpus.entries = lambda: kept
    metrics = task.run(tmp_path)
    assert json.dumps(metrics)
    for program in ("chebyshev", "layer", "transposed"):
        assert metrics[f"{program}/fused_over_loops_min"] <= 1.001 * metrics[f"{program}/fused_over_loops"]
        assert metrics[f"{program}/own_over_scipy"] > 0
    assert metrics["transposed/recognised_over_own"] > 0
    assert "layer/recognised_over_own" not in metrics
    frame = pd.read_parquet(tmp_path / "per_matrix.parquet")
    assert set(frame["method"]) == {"own", "own_unfused", "fused", "loops", "recognised", "scipy", "torch"}


def test_ratios_say_how_many_times_as_fast_the_first_is():
    rows = [{"program": "product", "matrix": matrix, "width": 32, "method": method, "median": seconds}
            for matrix in ("a", "b") for method, seconds in (("fused", 1.0), ("loops", 4.0), ("own", 0.5))]
    metrics = fuse_metrics(pd.DataFrame(rows), seed=0)
    assert metrics["product/fused_over_loops"] == pytest.approx(4)
    assert metrics["product/own_over_fused"] == pytest.approx(2)
    assert "product/own_over_scipy" not in metrics


def test_a_wrong_result_stops_the_bench(build, tmp_path, monkeypatch):
    task = build("bench_fuse", "timing=quick", "corpus.scale=0.002", folder=tmp_path)
    matrix = task.corpus.load("band")
    calls = {"scipy": lambda: np.ones(3), "fused": lambda: np.array([1, 1, 2.0])}
    monkeypatch.setattr(bench_fuse.BenchFuse, "_chebyshev", lambda *_: calls)
    with pytest.raises(AssertionError, match="the result of fused differs from SciPy's"):
        task._case(bench_fuse.PROGRAMS["chebyshev"], {}, matrix, 1)
