"""Exhaustive search: order, ties, refusals."""

from collections.abc import Sequence

import numpy as np
import pytest

from sparloom.space import Config, SpadeSpace
from sparloom.sparse import Pattern
from sparloom.tuning import top_k

SPACE = SpadeSpace("spmm")
PATTERN = Pattern.from_coo([0, 1], [1, 0], (2, 2))


class Given:
    """Model that returns given scores."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores

    def score(self, matrix: Pattern, configs: Sequence[Config]) -> np.ndarray:
        return self.scores


def test_lowest_scores_come_first() -> None:
    scores = np.random.default_rng(0).random(256)
    found = top_k(Given(scores), PATTERN, SPACE, 5)
    configs = list(SPACE)
    assert [entry.config for entry in found] == [configs[place] for place in np.argsort(scores)[:5]]
    assert [entry.score for entry in found] == sorted(scores)[:5]


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="Given gave 256 scores, 1 of them NaN, for 256 configurations"):
        top_k(Given(np.where(np.arange(256) == 7, np.nan, 0)), PATTERN, SPACE, 1)
    with pytest.raises(ValueError, match="Given gave 2 scores, 0 of them NaN, for 256 configurations"):
        top_k(Given(np.zeros(2)), PATTERN, SPACE, 1)
