"""Efficiency of choices: ratios, bounds over groups, missing values."""

import numpy as np
import pandas as pd

from sparloom.report import (
    JudgedProblems,
    efficiencies,
)


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
