"""The benchmark of decompositions: cases, metrics, refusals."""

import pandas as pd
import pytest

SMALL = ("~task.matrices.cells", "~task.matrices.words", "task.matrices.small.rows=300", "task.matrices.small.cols=200",
         "task.components=3", "task.rounds=2", "task.threads=1")


@pytest.mark.cc
def test_every_case_is_timed_and_reduced(build, tmp_path):
    task = build("bench_decompositions", *SMALL, folder=tmp_path)
    metrics = task.run(tmp_path)
    frame = pd.read_parquet(tmp_path / "per_case.parquet")
    assert [(row.dtype, row.solver) for row in frame[["dtype", "solver"]].itertuples()] == [
        (dtype, solver) for dtype in ("float64", "float32") for solver in ("randomized_svd", "pca", "svds")]
    assert all(len(taken) == 2 for name in ("scipy", "sparloom") for taken in frame[name])
    assert metrics["over_scipy_min"] <= metrics["over_scipy"]
    name = "small/float32/pca/over_scipy"
    assert metrics[f"{name}/low"] <= metrics[name] <= metrics[f"{name}/high"]


def test_metrics_are_ratios_of_medians():
    from sparloom.experiments.autosage.bench_decompositions import decomposition_metrics

    rows = [{"matrix": "a", "dtype": "float64", "solver": "pca", "scipy": [4.0, 8.0, 8.0], "sparloom": [2.0, 2.0, 8.0]},
            {"matrix": "b", "dtype": "float64", "solver": "pca", "scipy": [1.0], "sparloom": [1.0]}]
    metrics = decomposition_metrics(pd.DataFrame(rows))
    assert metrics["a/float64/pca/over_scipy"] == 4.0
    assert (metrics["a/float64/pca/over_scipy/low"], metrics["a/float64/pca/over_scipy/high"]) == (1.0, 4.0)
    assert (metrics["over_scipy"], metrics["over_scipy_min"]) == (2.0, 1.0)
