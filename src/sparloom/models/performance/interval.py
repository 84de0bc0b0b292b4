"""An interval in which a measurement falls with a given probability: two quantile models, widened where they err."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import lightgbm
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
    """Quantiles predicted out of fold, on the scale of the target.

    Args:
        low, high: quantiles as they are predicted.
        margins: by which each problem is widened, found on all folds but its own, (problems, 1).
        margin: found on all folds, for problems that nobody has seen.
        members: one model per fold, of either quantile.
        coverage: probability that is meant.
    """

    low: Float[np.ndarray, "problems configs"]
    high: Float[np.ndarray, "problems configs"]
    margins: Float[np.ndarray, "problems 1"]
    margin: float
    members: tuple[tuple[lightgbm.Booster, ...], tuple[lightgbm.Booster, ...]]
    coverage: float

    def cover(self, targets: Float[np.ndarray, "problems configs"]) -> Bool[np.ndarray, "problems configs"]:
        """Whether measurements lie within; NaN does not."""
        return (targets >= self.low - self.margins) & (targets <= self.high + self.margins)

    def cover_plain(self, targets: Float[np.ndarray, "problems configs"]) -> Bool[np.ndarray, "problems configs"]:
        """The same without the margins."""
        return (targets >= self.low) & (targets <= self.high)

    def interval(self, model: PerformanceModel) -> PredictionInterval:
        """The interval that goes with a model of the same features and folds."""
        low, high = (replace(model, members=members) for members in self.members)
        return PredictionInterval(low, high, self.margin, self.coverage)


def bounds_out_of_fold(grid: Grid, growth: Growth, folds: np.ndarray, *, coverage: float) -> Bounds:
    """Fit quantile models per fold and widen them by what the others missed.

    Args:
        folds: (problems, 1).
        coverage: probability that a measurement shall lie within.

    Source: conformalized quantile regression (Romano et al., NeurIPS 2019), with folds in place of a calibration set:
    a margin is the quantile of how far the measurements of the other folds lie outside of their intervals. It may be
    negative.
    """
    tails = ((1 - coverage) / 2, (1 + coverage) / 2)
    low_members, high_members = (tuple(cross_fit(grid, growth, folds, quantile=tail)) for tail in tails)
    low, high = (out_of_fold(grid, members, folds, threads=growth.threads) for members in (low_members, high_members))
    high = np.maximum(low, high)
    outside = np.maximum(low - grid.targets, grid.targets - high)
    margins = np.zeros(folds.shape)
    for fold in range(int(folds.max()) + 1):
        others = outside[(folds != fold).ravel()]
        margins[folds == fold] = np.nanquantile(others, coverage)
    return Bounds(low, high, margins, float(np.nanquantile(outside, coverage)), (low_members, high_members), coverage)
