"""The benchmark of compiled functions on small matrices: all methods agree and have ratios."""

import json

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments.fusion import bench_fuse

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


def test_a_wrong_result_stops_the_bench(build, tmp_path, monkeypatch):
    task = build("bench_fuse", "timing=quick", "corpus.scale=0.002", folder=tmp_path)
    matrix = task.corpus.load("band")
    calls = {"scipy": lambda: np.ones(3), "fused": lambda: np.array([1, 1, 2.0])}
    monkeypatch.setattr(bench_fuse.BenchFuse, "_chebyshev", lambda *_: calls)
    with pytest.raises(AssertionError, match="the result of fused differs from SciPy's"):
        task._case(bench_fuse.PROGRAMS["chebyshev"], {}, matrix, 1)
