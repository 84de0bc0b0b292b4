"""The accounts of tuning problems."""

import numpy as np
import pandas as pd
import pytest

from sparloom.data import TuningProblem


def problem(labels_on: str = "judged", budget: int = 2) -> TuningProblem:
    labels = {"t": np.array([3.0, 1.0, 2.0]), "u": np.array([1.0, 2.0, 3.0]), "j": np.array([2.0, 3.0, 1.0])}
    return TuningProblem(configs=pd.DataFrame({"p": [0, 1, 2]}), default=1, statistics=pd.DataFrame(), labels=labels,
                         train=("t", "u"), judged=("j",), budget=budget, labels_on=labels_on)


def test_labels_are_counted_once_each():
    made = problem()
    assert [made.evaluate("j", 0), made.evaluate("j", 0), made.evaluate("j", 2)] == [2.0, 2.0, 1.0]
    assert (made.spent(), made.left("j")) == (2, 0)
    assert made.best_evaluated("j") == 2
    assert made.best_evaluated("j", 1) == 0
    with pytest.raises(ValueError, match=r"all 2 labels on j are spent: return what was chosen with them"):
        made.evaluate("j", 1)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.inf])
def test_labels_that_are_no_times_are_refused(wrong):
    made = problem()
    made.labels["j"][2] = wrong
    with pytest.raises(ValueError, match=f"j, configuration 2: seconds={wrong}: give a positive number"):
        made.evaluate("j", 2)


def test_a_configuration_that_fails_costs_a_label_and_is_not_chosen():
    made = problem()
    made.labels["j"][2] = np.nan
    assert np.isnan(made.evaluate("j", 2))
    assert (made.left("j"), made.best_evaluated("j")) == (1, made.default)
    made.evaluate("j", 0)
    assert made.best_evaluated("j") == 0


@pytest.mark.parametrize("config", [-1, 3])
def test_configurations_that_are_not_there_cost_no_label(config):
    made = problem()
    with pytest.raises(ValueError, match=rf"there is no configuration {config}: give a number from 0 to 2"):
        made.evaluate("j", config)
    assert made.spent() == 0


def test_labels_of_training_matrices_are_counted_together():
    made = problem("train")
    made.evaluate("t", 0)
    assert made.left("u") == 1
    made.evaluate("u", 0)
    with pytest.raises(ValueError, match=r"all 2 labels on training matrices are spent"):
        made.evaluate("t", 1)
    with pytest.raises(ValueError, match=r"j may not be evaluated: with labels_on=train these may: 2 matrices, such"):
        made.evaluate("j", 0)
