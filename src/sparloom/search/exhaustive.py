"""Exhaustive search: score every configuration of the space; right for spaces of a few thousand points."""

from dataclasses import dataclass

import numpy as np

from sparloom.models import CostModel, MatrixView
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["Ranked", "top_k"]


@dataclass(frozen=True)
class Ranked:
    """A configuration and its score; low = fast."""

    config: Config
    score: float


def top_k(model: CostModel, matrix: Pattern | MatrixView, space: ConfigSpace, k: int) -> list[Ranked]:
    """Find the k configurations with the lowest scores, best first; equal scores keep the order of the space.

    Args:
        space: bound or not; it is bound to the shape of the matrix here.

    Raises:
        ValueError: k is not in 1..len(space), or the model gave a score that is not a number.
    """
    if not 1 <= k <= len(space):
        raise ValueError(f"top {k} of space {space.name} ({space.op}): choose k from 1 to {len(space)}")
    configs = list(space.bind(matrix.shape))
    scores = np.asarray(model.score(matrix, configs), np.float64)
    if scores.shape != (len(configs),) or np.isnan(scores).any():
        raise ValueError(f"{type(model).__name__} gave {scores.size} scores, {np.isnan(scores).sum()} of them NaN, for "
                         f"{len(configs)} configurations: its training diverged, train it again")
    best = np.argsort(scores, kind="stable")[:k]
    return [Ranked(configs[place], float(scores[place])) for place in best]
