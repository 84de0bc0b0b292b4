"""Figures: both files exist, equal input gives equal files, global settings are unchanged."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from sparloom.report import draw_curves, draw_matrices, draw_methods, draw_spy, results_table, summary
from sparloom.report.figures import figure, logarithmic, width_bars
from sparloom.sparse import Pattern


def both(stem):
    return [stem.with_suffix(ending).read_bytes() for ending in (".png", ".svg")]


def test_methods_are_drawn_equally_twice(frame, tmp_path):
    metrics = summary(frame, headline="cognate", prefix="test", seed=0)
    before = dict(matplotlib.rcParams)
    for name in ("one", "two"):
        draw_methods(metrics, tmp_path / name, prefix="test", title="a title")
    assert both(tmp_path / "one") == both(tmp_path / "two")
    assert dict(matplotlib.rcParams) == before
    assert b"<!-- COGNATE" in both(tmp_path / "one")[1]


def test_matrices_are_drawn(frame, tmp_path):
    draw_matrices(frame, tmp_path / "matrices", title="each")
    assert both(tmp_path / "matrices")


@pytest.mark.parametrize("value", [1.0, 6.555])
def test_a_single_bar_gets_a_logarithmic_axis(value):
    _, (axes,) = figure(3, 3)
    width_bars(axes, {("ours", 64): np.array([value])}, {"ours": "C0"})
    logarithmic(axes)
    low, high = axes.get_ylim()
    assert 0 < low <= 1 <= high


@pytest.mark.parametrize("columns", [["train/prl", "train/opa"], ["train/prl", "train/opa", "validation/prl"]])
def test_curves_are_drawn_with_what_was_logged(tmp_path, columns):
    rows = [{"method": method, "seed": seed, "epoch": epoch, **dict.fromkeys(columns, 1 / epoch)}
            for method in ("cognate", "no_transfer") for seed in (0, 1) for epoch in range(1, 4)]
    frame = pd.DataFrame(rows)
    frame.loc[frame["epoch"] != 2, [name for name in columns if name.startswith("validation")]] = np.nan
    draw_curves(frame, tmp_path / "curves")
    assert both(tmp_path / "curves")


@pytest.mark.parametrize("shape", [(1, 1), (1, 900), (900, 1), (300, 5000)])
def test_spy_takes_any_shape(tmp_path, shape):
    pattern = Pattern.from_coo(np.array([0]), np.array([shape[1] - 1]), shape)
    draw_spy(pattern, tmp_path / "spy", rows_step=4, cols_step=1024, title="one")
    assert both(tmp_path / "spy")


def test_table_has_a_row_per_method(frame):
    metrics = summary(frame, headline="cognate", prefix="test", seed=0)
    table = results_table(metrics, prefix="test")
    assert list(table.columns[0].cells) == ["random choice", "static", "COGNATE top-1", "COGNATE top-5", "optimum"]
