"""Evaluation of choices: small cases computed by hand, and general properties."""

import itertools

import numpy as np
import pandas as pd
import pytest

from sparloom.report import RuntimeTable, judge, random_choice
from sparloom.space import SpadeSpace


def test_perfect_scores_choose_the_optimum(truth):
    choice = judge("cognate", 0, truth, truth.seconds)
    np.testing.assert_array_equal(choice.top1, truth.best)
    np.testing.assert_array_equal(choice.opa, 1)
    np.testing.assert_allclose(choice.tau, 1)


def test_reversed_scores_choose_the_slowest(truth):
    choice = judge("cognate", 0, truth, -truth.seconds)
    np.testing.assert_array_equal(choice.top1, truth.seconds.max(axis=1))
    np.testing.assert_array_equal(choice.opa, 0)


def test_first_five_are_different_programs(truth):
    small = dict(zip(truth.matrices, truth.programs, strict=True))["a/small"]
    wide = [place for place, config in enumerate(truth.configs) if config["column_panel"] != 1024]
    assert len(set(small)) < len(set(truth.programs[1]))
    assert len({small[place] for place in wide}) == len({small[place] for place in wide
                                                         if truth.configs[place]["column_panel"] == "all"})
    scores = np.ones_like(truth.seconds)
    same = np.flatnonzero(small == small[0])
    scores[0, same] = 0.0                      # one program under many names comes first
    assert judge("cognate", 0, truth, scores).top5[0] <= truth.seconds[0, same[0]]
    others = [place for place in range(256) if small[place] != small[0]]
    scores[0, others[:4]] = 0.5
    scores[0, others[4:]] = 0.9
    distinct = [place for number, place in enumerate(others[:4]) if small[place] not in small[others[:number]]]
    expected = min(truth.seconds[0, same[0]], *truth.seconds[0, distinct])
    assert judge("cognate", 0, truth, scores).top5[0] <= expected


def test_missing_configuration_is_refused():
    space = SpadeSpace("spmm")
    labels = pd.DataFrame([{"matrix": "a/b", "config": config.key, "seconds": 1.0} for config in list(space)[1:]])
    with pytest.raises(ValueError, match="1 of 1 matrices lack seconds, a/b for 1 of 256 configurations"):
        RuntimeTable.of(labels, space, {"a/b": (9, 9)})


def test_random_choice_is_the_average_over_all_choices():
    space = SpadeSpace("spmm")
    seconds = np.arange(1.0, 257.0)
    labels = pd.DataFrame({"matrix": "a/b", "config": [config.key for config in space], "seconds": seconds})
    choice = random_choice(RuntimeTable.of(labels, space, {"a/b": (9, 9)}))
    np.testing.assert_allclose(np.log(choice.top1), [np.log(seconds).mean()])


def test_least_of_five_agrees_with_counting():
    from sparloom.report.evaluation import _least_of

    counted = np.zeros(7)
    for drawn in itertools.combinations(range(7), 3):
        counted[min(drawn)] += 1
    np.testing.assert_allclose(_least_of(3, 7), counted / counted.sum())
