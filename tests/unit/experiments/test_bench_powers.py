"""The benchmark of matrix powers on small matrices, its metrics, and detection of a wrong product."""

import json

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments.fusion import bench_powers, powers_metrics

pytestmark = pytest.mark.cc

ROUNDING = 1e-12  # of means of one number


def test_small_matrices_give_a_ratio_for_every_method(build, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_powers, "GENERATED", {
        part: dict(list(names.items())[:1]) for part, names in bench_powers.GENERATED.items()})
    task = build("bench_powers", "timing=quick", "task.parts=[bands,meshes,graphs]", "task.scale=0.0003",
                 "task.steps=[2]", "task.columns=[3]", "task.kept=[last]", "timing.steal_ratio=100", folder=tmp_path)
    metrics = task.run(tmp_path)
    assert json.dumps(metrics)
    assert metrics["all/matrices"] == 3
    for part in ("bands", "meshes", "graphs", "all"):
        assert metrics[f"{part}/auto_over_plain_min"] <= (1 + ROUNDING) * metrics[f"{part}/auto_over_plain"]
        assert metrics[f"{part}/auto_over_scipy_low"] <= (1 + ROUNDING) * metrics[f"{part}/auto_over_scipy_high"]
    frame = pd.read_parquet(tmp_path / "per_matrix.parquet")
    assert {"plain", "auto", "scipy"} <= set(frame["method"])
    assert len(frame[frame["method"] == "plain"]) == 3
    assert (frame["median"] > 0).all()
    assert not list((tmp_path / "artifacts" / "bench_powers").iterdir())


def test_ratios_count_every_matrix_once():
    rows = [{"part": "bands", "matrix": matrix, "kept": "last", "columns": columns, "steps": 4, "method": method,
             "median": seconds}
            for matrix, ratios in (("a", (4.0, 1.0)), ("b", (8.0,)))
            for columns, ratio in enumerate(ratios, start=1)
            for method, seconds in (("plain", ratio), ("auto", 1.0), ("scipy", 2 * ratio))]
    metrics = powers_metrics(pd.DataFrame(rows), seed=0)
    assert metrics["bands/auto_over_plain"] == pytest.approx(np.sqrt(2 * 8))
    assert metrics["bands/auto_over_plain_min"] == 1
    assert metrics["bands/auto_over_plain_max"] == metrics["all/auto_over_plain_max"] == 8
    assert metrics["bands/last/1/4/auto_over_plain"] == pytest.approx(np.sqrt(32))
    assert metrics["bands/auto_over_scipy"] == pytest.approx(2 * metrics["bands/auto_over_plain"])
    assert "bands/blocked_over_plain" not in metrics


def test_a_wrong_product_stops_the_bench(build, tmp_path, monkeypatch):
    task = build("bench_powers", "timing=quick", "task.parts=[bands]", "task.scale=0.0003", folder=tmp_path)
    powers = bench_powers.MatrixPowers.powers
    monkeypatch.setattr(bench_powers.MatrixPowers, "powers", lambda *args, **options: powers(*args, **options) + 1e-6)
    with pytest.raises(AssertionError, match="the result of plain differs from SciPy's"):
        task.run(tmp_path)
