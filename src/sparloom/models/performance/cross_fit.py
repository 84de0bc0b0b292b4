"""One model per fold: each is scored on the fold that it has not seen, and all of them together are the model."""

from collections.abc import Sequence

import lightgbm
import numpy as np
from jaxtyping import Float

from sparloom.models.performance.grid import Grid
from sparloom.models.performance.growth import Growth

__all__ = ["cross_fit", "grow_each", "out_of_fold", "predict"]


def cross_fit(
    grid: Grid, growth: Growth, folds: np.ndarray, *, weights: np.ndarray | None = None,
    quantile: float | None = None,
) -> list[lightgbm.Booster]:
    """Grow one model per fold, on all other folds.

    How many trees it has is found without the fold it is scored on: a first model learns from all folds but that one
    and the next one, and stops by its error on the next one; then the model grows so many trees on both.

    Args:
        folds: integers from 0 that broadcast to (problems, configs).
        weights: of rows, that broadcast as well.
        quantile: to predict in place of the mean.

    Raises:
        ValueError: fewer than three folds: one is scored, one stops the growth, the others are learned from.
    """
    count = int(np.max(folds)) + 1
    if count < 3:
        raise ValueError(f"{count} folds leave nothing to learn from, as one is scored and one ends the growth: "
                         "take at least 3")
    members = []
    for fold in range(count):
        following = (fold + 1) % count
        trees = growth.best_size(
            grid.rows((folds != fold) & (folds != following), weights), grid.rows(folds == following), grid.names,
            quantile=quantile)
        members.append(growth.with_trees(trees).grow(grid.rows(folds != fold, weights), grid.names, quantile=quantile))
    return members


def grow_each(
    grid: Grid, growth: Growth, folds: np.ndarray, *, weights: np.ndarray | None = None,
    kept: np.ndarray | bool = True,
) -> list[lightgbm.Booster]:
    """Grow all trees of one model per fold, on all other folds, as far as rows are `kept`.

    Args:
        folds, weights, kept: broadcast to (problems, configs).
    """
    return [growth.grow(grid.rows((folds != fold) & kept, weights), grid.names)
            for fold in range(int(np.max(folds)) + 1)]


def out_of_fold(
    grid: Grid, members: Sequence[lightgbm.Booster], folds: np.ndarray, *, threads: int
) -> Float[np.ndarray, "problems configs"]:
    """Predict every fold by the model that has not seen it, on the scale of the target; NaN nowhere."""
    folds = np.broadcast_to(folds, grid.targets.shape)
    found = np.full(grid.targets.shape, np.nan)
    for fold, member in enumerate(members):
        asked = folds == fold
        if asked.any():
            found[asked] = member.predict(grid.features[asked], num_threads=threads)
    return found


def predict(
    members: Sequence[lightgbm.Booster], features: Float[np.ndarray, "*shape features"], *, threads: int
) -> Float[np.ndarray, "*shape"]:
    """Average the predictions of several models."""
    flat = features.reshape(-1, features.shape[-1])
    total = np.sum([member.predict(flat, num_threads=threads) for member in members], axis=0)
    return (total / len(members)).reshape(features.shape[:-1])
