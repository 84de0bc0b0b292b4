"""Portfolios: a few configurations, one of which is near the best for every problem."""

import numpy as np

from sparloom.tuning import portfolio


def test_each_one_helps_most_where_those_before_do_not():
    seconds = np.array([[1.0, 9.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, 2.0]])
    assert portfolio(seconds, 1) == [2]
    assert portfolio(seconds, 3) == [2, 1, 0]


def test_a_portfolio_ends_if_another_configuration_would_not_help():
    assert portfolio(np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 5.0]]), 3) == [0]
    assert portfolio(np.ones((4, 3)), 3) == [0]
