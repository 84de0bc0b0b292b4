"""Interfaces of cost models, the features of a matrix that they read, and simple models.

A `CostModel` scores configurations of a matrix, given as `MatrixFeatures`; a `Learner` is one that is fitted to labels.
`Static` ignores the matrix, `Estimate` knows a formula and no labels, and `Ensemble` averages several models.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Float

from sparloom.data import MatrixInput, checked_seconds, coarsen, label_seconds
from sparloom.models.sparseconv import conv_flops
from sparloom.space import MAX_LISTED, Config, ConfigSpace
from sparloom.sparse import Pattern, WalkStatistics, statistics, walk_statistics

if TYPE_CHECKING:
    import pandas as pd

RIDGE = 1.0  # of the additive model that fills in untried configurations, in units of one observation


class MatrixFeatures:
    """Features of one matrix, each computed at first access.

    Args:
        load: name of a feature ("input", "statistics", "walks", "digest") -> function that returns it, called at most
            once.
    """

    def __init__(self, shape: tuple[int, int], nnz: int, load: Mapping[str, Callable[[], Any]]) -> None:
        self.shape, self.nnz, self._load = shape, nnz, load

    @classmethod
    def from_pattern(cls, pattern: Pattern, name: str = "") -> MatrixFeatures:
        return cls(pattern.shape, pattern.nnz, {
            "input": lambda: coarsen(pattern, name=name, cost=conv_flops), "statistics": lambda: statistics(pattern),
            "walks": lambda: walk_statistics(pattern), "digest": pattern.digest})

    @classmethod
    def from_stored(
        cls,
        stored: MatrixInput,
        statistics: Mapping[str, float] | None = None,
        walks: Callable[[], WalkStatistics] | None = None,
    ) -> MatrixFeatures:
        """Use stored features; the nonzeros are not needed."""
        known = {"input": lambda: stored, "digest": lambda: stored.digest}
        if statistics is not None:
            known["statistics"] = lambda: statistics
        return cls(stored.shape, stored.nnz, known if walks is None else known | {"walks": walks})

    @cached_property
    def input(self) -> MatrixInput:
        """Sites for the featurizer, limited in number and cost."""
        return self._load["input"]()

    @cached_property
    def statistics(self) -> Mapping[str, float]:
        return self._given("statistics")

    @cached_property
    def walks(self) -> WalkStatistics:
        return self._given("walks")

    @cached_property
    def digest(self) -> str:
        """Hash of the pattern, on which all features depend: equal on every machine and in every version."""
        return self._load["digest"]()

    def _given(self, name: str) -> Any:
        if name not in self._load:
            raise ValueError(f"the {name} of {self.input.name} are missing: pass them to MatrixFeatures.from_stored")
        return self._load[name]()


class CostModel(Protocol):
    """Ranks configurations for a matrix that may not be in the training data."""

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast; scores of different matrices are not comparable."""


def as_features(matrix: Pattern | MatrixFeatures) -> MatrixFeatures:
    """Wrap a pattern; features are returned unchanged."""
    return MatrixFeatures.from_pattern(matrix) if isinstance(matrix, Pattern) else matrix


class Static:
    """Rank configurations by the geometric mean of their seconds over the training matrices, for every matrix alike.

    Missing seconds are estimated by ridge regression of log seconds on the values of parameters and of pairs of
    parameters.
    """

    def __init__(self) -> None:
        self._scores: Mapping[str, float] = {}

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace) -> Static:
        """Fit a new model to labels with the columns matrix, config and seconds.

        Raises:
            ValueError: seconds are not positive and finite.
        """
        labels = labels.assign(seconds=label_seconds(labels))
        times = labels.pivot_table(index="matrix", columns="config", values="seconds", aggfunc="median")
        return self.fit_table(times.to_numpy(np.float64), list(times.columns), space=space)

    def fit_table(
        self, seconds: Float[np.ndarray, "matrices keys"], keys: Sequence[str], *, space: ConfigSpace,
    ) -> Static:
        """Fit a new model to the seconds of configurations with these keys, NaN where they are missing."""
        known = np.log(checked_seconds(
            seconds, lambda index: f"matrix {index // len(keys)}, {keys[index % len(keys)]}", gaps=True))
        configs = list(space) if len(space) <= MAX_LISTED else [Config.parse(space.name, key) for key in keys]
        columns = {key: index for index, key in enumerate(keys)}
        table = np.full((len(known), len(configs)), np.nan)
        for index, config in enumerate(configs):
            if config.key in columns:
                table[:, index] = known[:, columns[config.key]]
        fitted = Static()
        fitted._scores = dict(zip((config.key for config in configs), _complete(table, configs), strict=True))
        return fitted

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        return self.score_configs(configs)

    def score_configs(self, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations without a matrix: low = fast."""
        missing = [config.key for config in configs if config.key not in self._scores]
        if missing:
            raise ValueError(f"configuration {missing[0]} was not in the space at fit: fit Static on this space first")
        return np.array([self._scores[config.key] for config in configs])


def _complete(table: np.ndarray, configs: Sequence[Config]) -> np.ndarray:
    """Fill gaps in log seconds (matrices, configs), then average over matrices."""
    known = np.isfinite(table)
    design = _indicators(configs)
    rows, cols = np.nonzero(known)
    matrices = np.eye(len(table))[rows]
    inputs = np.concatenate([matrices * 1e3, design[cols]], axis=1)  # 1e3: matrix levels are not shrunk
    weights = np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ table[known])
    level, effect = weights[:len(table)] * 1e3, design @ weights[len(table):]
    return np.where(known, table, level[:, None] + effect[None, :]).mean(axis=0)


def _indicators(configs: Sequence[Config]) -> np.ndarray:
    """Build a design matrix: one column per value of a parameter and per pair of values that occurs."""
    columns: dict[tuple, int] = {}
    entries = []
    for config in configs:
        values = config.values
        terms = [*values, *((a, b) for at, a in enumerate(values) for b in values[at + 1:])]
        entries.append([columns.setdefault(term, len(columns)) for term in terms])
    design = np.zeros((len(configs), len(columns)))
    for row, present in enumerate(entries):
        design[row, present] = 1
    return design


Estimator = Callable[[MatrixFeatures, Sequence[Config]], Float[np.ndarray, " configs"]]
"""Seconds of configurations by a formula that knows no labels."""


class Learner(Protocol):
    """A cost model that is fitted to labels; both methods return a copy and do not change the model.

    Those that learn from seconds refuse labels that are not positive and finite, see `label_seconds`. Those that also
    have `with_estimate(estimator)` learn what an `Estimator` leaves unexplained.
    """

    def with_seed(self, seed: int) -> Learner: ...
    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]) -> CostModel: ...


def with_estimate(learner: Learner, estimator: Estimator | None) -> Learner:
    """Let a learner learn what an estimate leaves unexplained, if it can and there is one."""
    learns = estimator is not None and hasattr(learner, "with_estimate")
    return learner.with_estimate(estimator) if learns else learner


class Estimate:
    """Rank configurations by an estimate, which `with_estimate` gives, whatever the labels are."""

    def __init__(self) -> None:
        self._estimator: Estimator | None = None

    def with_estimate(self, estimator: Estimator) -> Estimate:
        model = Estimate()
        model._estimator = estimator
        return model

    def with_seed(self, seed: int) -> Estimate:
        """Return the model: nothing is random."""
        return self

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]) -> Estimate:
        """Return the model: it has nothing to learn.

        Raises:
            ValueError: there is no estimate.
        """
        if self._estimator is None:
            raise ValueError("model=estimate ranks by the formula of a platform, and this one has none: take "
                             "model=ensemble")
        return self

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Return logarithms of estimated seconds."""
        assert self._estimator is not None
        return np.log(self._estimator(as_features(matrix), configs))


class Ensemble:
    """Average the scores of several models, each scaled to unit variance over the requested configurations.

    A model that gives all configurations the same score does not count. Members have one vote each. An estimate has the
    share of all votes that labels leave to it, 1 - the mean of the `explained_share` of the members, which is within 0
    and 1: all votes where labels do not show that members know its errors. If no member has one, it has half of them.

    Args:
        members: models fitted to the same labels.
        pretrained: models that do not learn from these labels, with their votes beside one of a member.
    """

    def __init__(self, *, members: Sequence[Learner], pretrained: Sequence[tuple[CostModel, float]] = ()) -> None:
        self.members, self.pretrained = tuple(members), tuple(pretrained)
        self._estimate: CostModel | None = None
        self._members_share = 0.5  # of the votes, beside an estimate

    def with_pretrained(self, model: CostModel, votes: float) -> Ensemble:
        """Add the votes of a model that does not learn from these labels."""
        return self._with(pretrained=(*self.pretrained, (model, votes)))

    def with_estimate(self, estimator: Estimator) -> Ensemble:
        """Let members learn the error of an estimate if they can, and let the estimate vote.

        It takes the place of an earlier one.
        """
        return self._with(members=[with_estimate(member, estimator) for member in self.members],
                          _estimate=Estimate().with_estimate(estimator))

    def with_seed(self, seed: int) -> Ensemble:
        return self._with(members=[member.with_seed(seed) for member in self.members])

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]) -> Ensemble:
        """Fit every member; returns a new model."""
        members = [member.fit(labels, space=space, matrices=matrices) for member in self.members]
        explained = [share for member in members if (share := getattr(member, "explained_share", None)) is not None]
        share = float(np.clip(np.mean(explained), 0, 1)) if explained else 0.5
        return self._with(members=members, _members_share=share)

    def _with(self, **changes: Any) -> Ensemble:
        model = copy.copy(self)
        vars(model).update(changes)
        return model

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations relative to each other: low = fast, no unit."""
        return self.score_with_opinions(matrix, configs)[0]

    def score_with_opinions(
        self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]
    ) -> tuple[Float[np.ndarray, " configs"], Float[np.ndarray, "voters configs"]]:
        """Score configurations; also return the scaled scores of all members, pretrained models and the estimate."""
        features, share = as_features(matrix), 1.0 if self._estimate is None else self._members_share
        members, others = self.member_scores(features, configs), [model for model, _ in self.pretrained]
        votes = [share] * len(members) + [share * votes for _, votes in self.pretrained]
        if self._estimate is not None:
            others.append(self._estimate)
            votes.append((1 - share) * len(members))
        opinions = np.stack([*members, *(scale_scores(model.score(features, configs)) for model in others)])
        return np.average(opinions, axis=0, weights=votes), opinions

    def member_scores(
        self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]
    ) -> Float[np.ndarray, "members configs"]:
        """Return the scaled scores of every member, without the estimate and the pretrained models."""
        features = as_features(matrix)
        return np.stack([scale_scores(member.score(features, configs)) for member in self.members])


def scale_scores(scores: Float[np.ndarray, " configs"]) -> Float[np.ndarray, " configs"]:
    """Scale scores to mean 0 and unit variance; equal ones become 0."""
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else np.zeros(len(scores))
