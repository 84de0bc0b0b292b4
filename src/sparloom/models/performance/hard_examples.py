"""Iterative mining of hard examples: problems whose configurations are chosen badly weigh more in the next round."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sparloom.models.performance.cross_fit import out_of_fold
from sparloom.models.performance.grid import Grid
from sparloom.models.performance.growth import Growth

__all__ = ["Mining", "mine_hard_examples"]

Judge = Callable[[Float[np.ndarray, "problems configs"]], Float[np.ndarray, " problems"]]
"""Predictions on the scale of the target -> efficiency of the choice on each problem."""


@dataclass(frozen=True)
class Mining:
    """How weights grow.

    Args:
        rounds: after the first, in which all weigh the same.
        share: of the problems, those with the least efficiency, that are hard.
        factor: by which the weight of a hard problem grows in each round.
        most: limit of a weight.
    """

    rounds: int
    share: float
    factor: float
    most: float


def mine_hard_examples(
    grid: Grid, growth: Growth, folds: np.ndarray, *, mining: Mining, judge: Judge
) -> Iterator[Float[np.ndarray, "problems configs"]]:
    """Yield the predictions out of fold of every round, the first without weights.

    What is hard is judged within the training part of each fold: one of its other folds at a time is held out. So the
    fold that is scored has no part in the weights either.

    Args:
        folds: (problems, 1).
        growth: all its trees are grown, in every round.

    Source: CK Tile learnings §3: weights of 2 to 5 on hard shapes, over three iterations.
    """
    count = int(folds.max()) + 1
    weights = np.ones((count, len(grid.targets)))
    for turn in range(mining.rounds + 1):
        members = [growth.grow(grid.rows(folds != fold, weights[fold][:, None]), grid.names) for fold in range(count)]
        yield out_of_fold(grid, members, folds, threads=growth.threads)
        if turn < mining.rounds:
            for fold in range(count):
                found = judge(_within(grid, growth, folds, fold, weights[fold]))
                inside = (folds != fold).ravel()
                hard = inside & (found <= np.quantile(found[inside], mining.share))
                weights[fold, hard] = np.minimum(mining.most, weights[fold, hard] * mining.factor)


def _within(grid: Grid, growth: Growth, folds: np.ndarray, fold: int, weights: np.ndarray) -> np.ndarray:
    """Predict the training part of a fold, each other fold by a model without it; the fold itself stays 0."""
    found = np.zeros(grid.targets.shape)
    for other in range(int(folds.max()) + 1):
        if other == fold:
            continue
        member = growth.grow(grid.rows((folds != fold) & (folds != other), weights[:, None]), grid.names)
        asked = (folds == other).ravel()
        found[asked] = member.predict(grid.features[asked].reshape(-1, grid.features.shape[-1]),
                                      num_threads=growth.threads).reshape(asked.sum(), -1)
    return found
