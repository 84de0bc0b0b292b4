"""The performance model: how fast a configuration runs on a problem, by gradient-boosted trees on a specification.

An interval in which a measurement falls with a given probability: two quantile models, widened where they err.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import lightgbm
import numpy as np
from jaxtyping import Bool, Float

from sparloom.measure import checked_threads
from sparloom.models.performance.features import FeatureSpec
from sparloom.models.performance.growth import BoostingConfig, Grid, Target, cross_fit, out_of_fold, predict
from sparloom.space import Config

__all__ = ["Bounds", "CandidateScorer", "Origin", "PerformanceModel", "PredictionInterval", "bounds_out_of_fold"]

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Origin:
    """What a model was trained for.

    Args:
        platform, preset: where it was measured.
        space: digest of the configuration space.
        machine: constants of the hardware that features may read, by name.
    """

    platform: str
    preset: str
    space: str
    machine: Mapping[str, float]


@dataclass(frozen=True)
class PerformanceModel:
    """Predicts a target as the mean of its members, on the target's scale.

    Args:
        members: one per fold, or a single one.
        names: features that the members read, in order.
        folds: group -> the member that has not seen it; empty when there is a single one.
        lineage: how it came about, the oldest entry first, JSON values.
        threads: of a prediction.
    """

    spec: FeatureSpec
    target: Target
    origin: Origin
    names: tuple[str, ...]
    members: tuple[lightgbm.Booster, ...]
    folds: Mapping[str, int] = field(default_factory=dict)
    lineage: tuple[Mapping[str, Any], ...] = ()
    threads: int = 1

    def __post_init__(self) -> None:
        checked_threads(self.threads)

    def predict(self, problems: Columns, configs: Sequence[Config]) -> Float[np.ndarray, "problems configs"]:
        """Predict the quantity in its unit; keep the result of `over` to ask about the same configurations again."""
        return self.over(configs).predict(problems)

    def over(self, configs: Sequence[Config]) -> "CandidateScorer":
        """Evaluate once what depends on configurations alone."""
        return CandidateScorer(self, tuple(configs))

    def falls_back(self, problems: Columns) -> Bool[np.ndarray, " problems"]:
        """Whether each problem is one that no model is asked about."""
        return self.spec.falls_back(problems)

    @property
    def trees(self) -> int:
        """Trees of all members."""
        return sum(member.num_trees() for member in self.members)

    def member(self, fold: int) -> "PerformanceModel":
        """One member by itself."""
        return replace(self, members=(self.members[fold],), folds={})


@dataclass(frozen=True)
class CandidateScorer:
    """A performance model over fixed configurations."""

    model: PerformanceModel
    configs: tuple[Config, ...]

    def predict(self, problems: Columns) -> Float[np.ndarray, "problems configs"]:
        """Predict the quantity in its unit for every configuration on every problem.

        Args:
            problems: what the specification wants to be given, (problems,) each; constants of the machine are those of
                the training unless they are given.
        """
        return self.model.target.restore(self.learned(problems))

    def score(self, problems: Columns) -> Float[np.ndarray, "problems configs"]:
        """Score configurations: low = fast; scores of different problems do not compare."""
        return self.model.target.sign * self.learned(problems)

    def best(self, problems: Columns, *, fallback: Config) -> list[Config]:
        """Choose a configuration for each problem; where the kernels are not made for it, the fallback."""
        scores, unasked = self.score(problems), self.model.falls_back(problems)
        return [fallback if aside else self.configs[place]
                for aside, place in zip(unasked, scores.argmin(axis=1), strict=True)]

    def learned(self, problems: Columns) -> Float[np.ndarray, "problems configs"]:
        """Predict on the scale of the target."""
        return predict(self.model.members, self.features(problems), threads=self.model.threads)

    def features(self, problems: Columns) -> Float[np.ndarray, "problems configs features"]:
        """Evaluate what the members read."""
        columns = {name: np.asarray(column, np.float64)[:, None] for name, column in problems.items()}
        constants = {name: np.float64(value) for name, value in self.model.origin.machine.items()}
        features = self.model.spec.matrix(constants | columns, self._kernel, names=self.model.names)
        shape = (len(next(iter(columns.values()))), len(self.configs), len(self.model.names))
        return np.broadcast_to(features, shape)

    @cached_property
    def _kernel(self) -> Columns:
        return self.model.spec.kernel(self.configs)


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


def bounds_out_of_fold(grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, coverage: float) -> Bounds:
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
