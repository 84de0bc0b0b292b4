"""Figures: both files exist, equal input gives equal files, global settings are unchanged."""


import matplotlib
import pandas as pd
import pytest

from sparloom.report import (
    draw_methods,
    judge,
    optimum,
    per_matrix,
    random_choice,
    results_table,
    summary,
)


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
    ("sparloom", "sparloom top-1"), ("trees_source", "trees + source top-5"),
    ("a model of mine", "a model of mine top-1")])
def test_the_method_that_ran_is_shown(truth, tmp_path, method, label):
    choices = [random_choice(truth), judge(method, 0, truth, -truth.seconds), optimum(truth)]
    frame = per_matrix(truth, choices, pd.DataFrame(index=list(truth.matrices)))
    metrics = summary(frame, headline=None, prefix="test", seed=0)
    draw_methods(metrics, tmp_path / "speedups", prefix="test", title="a title")
    drawn = (tmp_path / "speedups.svg").read_text()
    assert f"<!-- {label}" in drawn
    assert "<!-- random" in drawn
    assert "<!-- optimum" in drawn


def test_table_has_a_row_per_method(frame):
    metrics = summary(frame, headline="cognate", prefix="test", seed=0)
    table = results_table(metrics, prefix="test")
    assert list(table.columns[0].cells) == ["random choice", "static", "COGNATE top-1", "COGNATE top-5", "optimum"]
