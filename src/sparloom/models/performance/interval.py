"""An interval in which a measurement falls with a given probability: two quantile models, widened where they err."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from sparloom.models.performance.cross_fit import cross_fit, out_of_fold
from sparloom.models.performance.grid import Grid
from sparloom.models.performance.growth import Growth
from sparloom.models.performance.model import PerformanceModel
from sparloom.space import Config

__all__ = ["Bounds", "PredictionInterval", "bounds_out_of_fold"]


@dataclass(frozen=True)
class PredictionInterval:
    """Two models of quantiles, and how far beyond them the interval reaches.

    Args:
        low, high: models of the lower and the upper quantile.
        margin: on the scale of the target.
        coverage: probability that is meant.
    """

    low: PerformanceModel
    high: PerformanceModel
    margin: float
    coverage: float

    def predict(
        self, problems: Mapping[str, np.ndarray], configs: Sequence[Config]
    ) -> tuple[Float[np.ndarray, "problems configs"], Float[np.ndarray, "problems configs"]]:
        """Bounds of the quantity in its unit."""
        low, high = (model.over(configs).learned(problems) for model in (self.low, self.high))
        restore = self.low.target.restore
        return restore(low - self.margin), restore(np.maximum(low, high) + self.margin)


@dataclass(frozen=True)
class Bounds:
    """Quantiles predicted out of fold, with the margin that each fold gets from all others.

    Args:
        low, high: on the scale of the target, widened.
        plain: whether a measurement lay between the quantiles before they were widened.
        covered: whether it does after; False where a configuration did not run.
        margin: of all folds together, for problems that nobody has seen.
    """

    low: Float[np.ndarray, "problems configs"]
    high: Float[np.ndarray, "problems configs"]
    plain: Bool[np.ndarray, "problems configs"]
    covered: Bool[np.ndarray, "problems configs"]
    margin: float
    members: tuple[tuple, tuple]


def bounds_out_of_fold(grid: Grid, growth: Growth, folds: np.ndarray, *, coverage: float) -> Bounds:
    """Fit quantile models per fold and widen them by what the others missed.

    Args:
        folds: (problems, 1).
        coverage: probability that a measurement shall lie within.

    Source: conformalized quantile regression (Romano et al., NeurIPS 2019), with folds in place of a calibration set;
    a fold's margin is the quantile of how far measurements of all other folds lie outside of their intervals.
    """
    tails = ((1 - coverage) / 2, (1 + coverage) / 2)
    members = tuple(tuple(cross_fit(grid, growth, folds, quantile=tail)) for tail in tails)
    low, high = (out_of_fold(grid, group, folds, threads=growth.threads) for group in members)
    high = np.maximum(low, high)
    outside = np.maximum(low - grid.targets, grid.targets - high)
    everywhere = np.broadcast_to(folds, grid.targets.shape)
    margins = np.zeros(grid.targets.shape)
    for fold in range(int(folds.max()) + 1):
        margins[everywhere == fold] = np.quantile(outside[grid.ran & (everywhere != fold)], coverage)
    return Bounds(low=low - margins, high=high + margins, plain=grid.ran & (outside <= 0),
                  covered=grid.ran & (outside <= margins), margin=float(np.quantile(outside[grid.ran], coverage)),
                  members=members)
