"""Figures: both files exist, equal input gives equal files, global settings are unchanged."""

import itertools

import matplotlib
import numpy as np
import pandas as pd
import pytest

from sparloom.report import (
    draw_curves,
    draw_matrices,
    draw_methods,
    draw_spy,
    judge,
    optimum,
    per_matrix,
    random_choice,
    results_table,
    summary,
)
from sparloom.report.figures import figure, logarithmic, set_ticks, width_points
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


@pytest.mark.parametrize(("method", "label"), [
    ("sparloom", "sparloom"), ("trees_source", "trees,"), ("a model of mine", "a model of mine")])
def test_the_method_that_ran_has_bars(truth, tmp_path, method, label):
    choices = [random_choice(truth), judge(method, 0, truth, -truth.seconds), optimum(truth)]
    frame = per_matrix(truth, choices, pd.DataFrame(index=list(truth.matrices)))
    metrics = summary(frame, headline=None, prefix="test", seed=0)
    draw_methods(metrics, tmp_path / "speedups", prefix="test", title="a title")
    drawn = (tmp_path / "speedups.svg").read_text()
    assert f"<!-- {label}" in drawn
    assert "<!-- random" in drawn
    assert "<!-- optimum" in drawn


def test_matrices_are_drawn(frame, tmp_path):
    draw_matrices(frame, tmp_path / "matrices", title="each")
    assert both(tmp_path / "matrices")


@pytest.mark.parametrize("value", [1.0, 6.555])
def test_a_single_value_gets_a_logarithmic_axis(value):
    _, (axes,) = figure(3, 3)
    width_points(axes, {("ours", 64): np.array([value])}, {"ours": "C0"})
    logarithmic(axes)
    low, high = axes.get_ylim()
    assert 0 < low <= 1 <= high


@pytest.mark.parametrize(("top", "some", "all_shown"), [(3, {1, 1.5, 2, 3}, True), (900, {1, 10, 100}, False)])
def test_ticks_whose_labels_would_overlap_are_left_out(top, some, all_shown):
    drawn, (axes,) = figure(4, 2.4)
    axes.plot([0, 1], [0.8, top], "o")
    logarithmic(axes)
    drawn.draw_without_rendering()
    shown = {label.get_text() for label in axes.get_yticklabels()}
    assert {f"{tick:g}" for tick in some} <= shown
    assert ("1.5" in shown) == all_shown
    boxes = sorted(label.get_window_extent().y0 for label in axes.get_yticklabels())
    height = axes.get_yticklabels()[0].get_window_extent().height
    assert all(next_one - one >= height for one, next_one in itertools.pairwise(boxes))


def test_sizes_that_have_room_are_all_marked():
    drawn, (axes,) = figure(5, 3)
    axes.plot([3, 100], [1, 2], "o")
    axes.set_xscale("log")
    set_ticks(axes.xaxis, [3, 5, 7, 20, 100])
    drawn.draw_without_rendering()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["3", "5", "7", "20", "100"]


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
