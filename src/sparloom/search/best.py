"""Search that fits the space: every configuration of a small one, an evolution in a large one."""

from collections.abc import Callable, Sequence

import numpy as np

from sparloom.search.evolution import Evolution
from sparloom.search.exhaustive import Ranked
from sparloom.space import Config, GridSpace

__all__ = ["best"]

LISTED = 4096  # configurations of a space that is scored whole


def best(
    score: Callable[[Sequence[Config]], np.ndarray], space: GridSpace, k: int, *, evolution: Evolution
) -> list[Ranked]:
    """Find k configurations with low scores, best first.

    Args:
        score: configurations -> scores, low = fast.
        evolution: for a space of more than 4096 configurations.
    """
    if len(space) > LISTED:
        return evolution.top_k(score, space, k)
    configs = list(space)
    scores = np.asarray(score(configs), np.float64)
    return [Ranked(configs[place], float(scores[place])) for place in np.argsort(scores, kind="stable")[:k]]
