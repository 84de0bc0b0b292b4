"""Efficiency of choices: ratios, bounds over groups, missing values."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import (
    JudgedProblems,
    draw_efficiencies,
    efficiencies,
    efficiency_metrics,
    paired_metrics,
)

NAMES = {"mean": "mean", "p10": "p10", "min": "min"}


def judged() -> JudgedProblems:
    about = pd.DataFrame({"matrix": ["a", "a", "b"], "width": [8, 16, 8], "group": ["a", "a", "b"], "slice": "all"})
    return JudgedProblems(about, ("x", "y"), np.array([[1.0, 2.0], [4.0, 1.0], [np.nan, 3.0]]))


def test_efficiency_is_best_over_chosen_seconds():
    rows = judged().choices("mine", np.array([1, 0, 1]))
    assert rows["efficiency"].tolist() == [0.5, 0.25, 1.0]
    assert rows["config"].tolist() == ["y", "x", "y"]
    assert rows["best_seconds"].tolist() == [1, 1, 3]


def test_a_configuration_that_did_not_run_has_no_efficiency():
    assert judged().choices("mine", np.array([0, 1, 0]))["efficiency"].tolist() == [1, 1, 0]
    np.testing.assert_array_equal(efficiencies(judged().seconds), [[1, 0.5], [0.25, 1], [0, 1]])


def test_bounds_are_over_groups():
    """Rows of one group that differ widely have no bounds: the group is drawn whole."""
    rows = judged().choices("mine", np.array([1, 0, 1]))
    found = efficiency_metrics(rows[rows["group"] == "a"], NAMES, seed=0)
    assert found["mean"] == found["mean_low"] == found["mean_high"] == 0.375
    assert found["min"] == 0.25
    assert "min_low" not in found
    both = efficiency_metrics(rows, NAMES, seed=0)
    assert both["mean_low"] == 0.375
    assert both["mean_high"] == 1.0


def test_methods_are_compared_on_the_same_draws():
    rows, others = judged().choices("mine", np.array([0, 1, 1])), judged().choices("other", np.array([1, 0, 1]))
    found = paired_metrics(rows, others.iloc[::-1], "lead", lambda own, other: float((own - other).mean()),
                           column="efficiency", seed=0)
    assert found == {"lead": pytest.approx(1.25 / 3), "lead_low": 0.0, "lead_high": pytest.approx(0.625)}


def test_efficiencies_are_drawn_and_the_same_again(tmp_path):
    rows = pd.concat([judged().choices("mine", np.array([1, 0, 1])), judged().choices("best", np.array([0, 1, 1]))])
    labels = {"best": "best", "absent": "absent", "mine": "mine"}
    for name in ("once", "again"):
        draw_efficiencies(rows, labels, tmp_path / name, title="t", seed=0)
    for ending in (".png", ".svg"):
        assert (tmp_path / f"once{ending}").read_bytes() == (tmp_path / f"again{ending}").read_bytes()
