"""Performance models: boosted trees that predict how fast a configuration runs on a problem, with intervals."""

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

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Origin:
    """Origin of the training data of a model.

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
        members: one model per fold, or a single one.
        names: features that the members read, in order.
        folds: group -> index of the member that was not trained on it; empty for a single member.
        lineage: history of the training as JSON values, oldest entry first.
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
        """Fix the configurations; features that depend on them alone are evaluated once."""
        return CandidateScorer(self, tuple(configs))

    def falls_back(self, problems: Columns) -> Bool[np.ndarray, " problems"]:
        """Return for each problem whether the model does not apply."""
        return self.spec.falls_back(problems)

    @property
    def trees(self) -> int:
        return sum(member.num_trees() for member in self.members)

    def member(self, fold: int) -> "PerformanceModel":
        return replace(self, members=(self.members[fold],), folds={})


@dataclass(frozen=True)
class CandidateScorer:
    """A performance model with fixed configurations."""

    model: PerformanceModel
    configs: tuple[Config, ...]

    def predict(self, problems: Columns) -> Float[np.ndarray, "problems configs"]:
        """Predict the quantity in its unit for every configuration on every problem.

        Args:
            problems: inputs of the specification, (problems,) each; constants of the machine default to those of the
                training data.
        """
        return self.model.target.restore(self.learned(problems))

    def score(self, problems: Columns) -> Float[np.ndarray, "problems configs"]:
        """Score configurations: low = fast; scores of different problems are not comparable."""
        return self.model.target.sign * self.learned(problems)

    def best(self, problems: Columns, *, fallback: Config) -> list[Config]:
        """Choose a configuration for each problem, the fallback where the model does not apply."""
        scores, outside = self.score(problems), self.model.falls_back(problems)
        return [fallback if falls_back else self.configs[index]
                for falls_back, index in zip(outside, scores.argmin(axis=1), strict=True)]

    def learned(self, problems: Columns) -> Float[np.ndarray, "problems configs"]:
        """Predict on the scale of the target."""
        return predict(self.model.members, self.features(problems), threads=self.model.threads)

    def features(self, problems: Columns) -> Float[np.ndarray, "problems configs features"]:
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
    """Interval that contains a measurement with a given probability: two quantile models and a margin.

    Args:
        low, high: models of the lower and the upper quantile.
        margin: distance by which the interval is widened, on the scale of the target.
    """

    low: PerformanceModel
    high: PerformanceModel
    margin: float
    coverage: float

    def predict(
        self, problems: Mapping[str, np.ndarray], configs: Sequence[Config]
    ) -> tuple[Float[np.ndarray, "problems configs"], Float[np.ndarray, "problems configs"]]:
        """Predict lower and upper bounds of the quantity in its unit."""
        low, high = (model.over(configs).learned(problems) for model in (self.low, self.high))
        restore = self.low.target.restore
        return restore(low - self.margin), restore(np.maximum(low, high) + self.margin)


@dataclass(frozen=True)
class Bounds:
    """Quantiles predicted out of fold, on the scale of the target.

    Args:
        margins: margin of each problem, computed from all folds but its own, (problems, 1).
        margin: margin for new problems, computed from all folds.
        members: one model per fold for each quantile.
    """

    low: Float[np.ndarray, "problems configs"]
    high: Float[np.ndarray, "problems configs"]
    margins: Float[np.ndarray, "problems 1"]
    margin: float
    members: tuple[tuple[lightgbm.Booster, ...], tuple[lightgbm.Booster, ...]]
    coverage: float

    def cover(self, targets: Float[np.ndarray, "problems configs"]) -> Bool[np.ndarray, "problems configs"]:
        """Return whether measurements lie within the widened interval; False for NaN."""
        return (targets >= self.low - self.margins) & (targets <= self.high + self.margins)

    def cover_plain(self, targets: Float[np.ndarray, "problems configs"]) -> Bool[np.ndarray, "problems configs"]:
        """Return whether measurements lie between the quantiles, without margins."""
        return (targets >= self.low) & (targets <= self.high)

    def interval(self, model: PerformanceModel) -> PredictionInterval:
        """Make the prediction interval of a model with the same features and folds."""
        low, high = (replace(model, members=members) for members in self.members)
        return PredictionInterval(low, high, self.margin, self.coverage)


def bounds_out_of_fold(grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, coverage: float) -> Bounds:
    """Fit quantile models per fold and compute the margins that give the nominal coverage.

    Args:
        folds: (problems, 1).
        coverage: nominal probability that a measurement lies within the interval.

    Source: conformalized quantile regression (Romano et al., NeurIPS 2019), with folds in place of a calibration set:
    a margin is the quantile of the distance by which measurements of the other folds lie outside of their intervals. It
    may be negative.
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
