"""What models read of a matrix: capped sites, size, statistics; each computed when a model asks for it.

Cost models: what search asks which configuration looks fastest; the one that looks at no pattern.

How near a matrix lies to those a model has learned from.

What was made of a pattern, kept while the next question is about the same one.

Several cost models that learn from the same labels and vote.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from sparloom.data import MatrixInput, coarsen
from sparloom.models.sparseconv import conv_flops
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern, WalkStatistics, statistics, walk_statistics

__all__ = [
    "CostModel", "Ensemble", "Familiarity", "Learner", "MatrixFeatures", "OneEntryCache", "Static", "as_features",
    "familiarity_of",
]


class MatrixFeatures:
    """One matrix as models see it.

    Args:
        shape, nnz: of the matrix itself.
        load_input: makes the featurizer's input; called at most once.
        load_statistics: makes the pattern statistics; called at most once.
        load_walks: makes what `walk_statistics` gives; called at most once.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, int],
        nnz: int,
        load_input: Callable[[], MatrixInput],
        load_statistics: Callable[[], Mapping[str, float]],
        load_walks: Callable[[], WalkStatistics],
    ) -> None:
        self.shape, self.nnz = shape, nnz
        self._load_input, self._load_statistics, self._load_walks = load_input, load_statistics, load_walks

    @classmethod
    def from_pattern(cls, pattern: Pattern, name: str = "") -> MatrixFeatures:
        """Look at a pattern that is in memory."""
        return cls(
            shape=pattern.shape, nnz=pattern.nnz,
            load_input=lambda: coarsen(pattern, name=name, cost=conv_flops),
            load_statistics=lambda: statistics(pattern),
            load_walks=lambda: walk_statistics(pattern),
        )

    @classmethod
    def from_stored(
        cls,
        given: MatrixInput,
        numbers: Mapping[str, float] | None = None,
        walks: Callable[[], WalkStatistics] | None = None,
    ) -> MatrixFeatures:
        """Look at a matrix whose input (and statistics, also of walks) were stored, without its nonzeros."""
        def absent(name: str) -> Callable[[], Any]:
            def fail() -> None:
                raise ValueError(f"the {name} of {given.name} were not given: pass them to MatrixFeatures.from_stored")

            return fail

        return cls(shape=given.shape, nnz=given.nnz, load_input=lambda: given,
                   load_statistics=absent("statistics") if numbers is None else lambda: numbers,
                   load_walks=walks or absent("statistics of walks"))

    @cached_property
    def input(self) -> MatrixInput:
        """Sites for the featurizer, capped in number and cost."""
        return self._load_input()

    @cached_property
    def statistics(self) -> Mapping[str, float]:
        """Pattern statistics by name."""
        return self._load_statistics()

    @cached_property
    def walks(self) -> WalkStatistics:
        """Statistics of tiled walks."""
        return self._load_walks()


RIDGE = 1.0  # of the additive model that stands in for untried configurations, in units of one observation


class CostModel(Protocol):
    """Orders configurations for a matrix it may never have seen."""

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast; scores of different matrices do not compare."""


def as_features(matrix: Pattern | MatrixFeatures) -> MatrixFeatures:
    """Look at a matrix, unless that was done before."""
    return MatrixFeatures.from_pattern(matrix) if isinstance(matrix, Pattern) else matrix


class Static:
    """Rank configurations by their geometric mean on the training matrices, whichever matrix is asked about.

    Few configurations are tried on all of them. A missing time is filled in by a ridge regression of log seconds on the
    values of parameters and of pairs of parameters; where all were tried, nothing is estimated.
    """

    def __init__(self) -> None:
        self._scores: Mapping[str, float] = {}

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace) -> Static:
        """Learn from columns matrix, config, seconds; returns a new model."""
        times = labels.pivot_table(index="matrix", columns="config", values="seconds", aggfunc="median")
        known = np.log(times.to_numpy(np.float64))
        configs = [config for config in _grid(space, times.columns)]
        columns = {key: place for place, key in enumerate(times.columns)}
        table = np.full((len(times), len(configs)), np.nan)
        for place, config in enumerate(configs):
            if config.key in columns:
                table[:, place] = known[:, columns[config.key]]
        fitted = Static()
        fitted._scores = dict(zip((config.key for config in configs), _complete(table, configs), strict=True))
        return fitted

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        return self.score_configs(configs)

    def score_configs(self, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations, whatever they run on: low = fast."""
        missing = [config.key for config in configs if config.key not in self._scores]
        if missing:
            raise ValueError(f"configuration {missing[0]} was not in the space at fit: fit Static on this space first")
        return np.array([self._scores[config.key] for config in configs])


def _grid(space: ConfigSpace, tried: Sequence[str]) -> list[Config]:
    """All configurations of a small space, the tried ones of a large one."""
    if len(space) <= 4096:
        return list(space)
    return [Config.parse(space.name, key) for key in tried]


def _complete(table: np.ndarray, configs: Sequence[Config]) -> np.ndarray:
    """Fill gaps of (matrices, configs) log seconds, then average over matrices."""
    known = np.isfinite(table)
    design = _indicators(configs)
    rows, cols = np.nonzero(known)
    matrices = np.eye(len(table))[rows]
    inputs = np.concatenate([matrices * 1e3, design[cols]], axis=1)  # 1e3: matrix levels are not shrunk
    weights = np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ table[known])
    level, effect = weights[:len(table)] * 1e3, design @ weights[len(table):]
    return np.where(known, table, level[:, None] + effect[None, :]).mean(axis=0)


def _indicators(configs: Sequence[Config]) -> np.ndarray:
    """One column per value of a parameter and per pair of values of two parameters that occurs."""
    places: dict[tuple, int] = {}
    entries = []
    for config in configs:
        values = config.values
        terms = [*values, *((a, b) for at, a in enumerate(values) for b in values[at + 1:])]
        entries.append([places.setdefault(term, len(places)) for term in terms])
    design = np.zeros((len(configs), len(places)))
    for row, columns in enumerate(entries):
        design[row, columns] = 1
    return design


@dataclass(frozen=True)
class Familiarity:
    """How near a matrix lies to those a model has learned from.

    Args:
        nearest: the nearest training matrix.
        percentile: share of the training matrices that have a nearer one of their own, in percent.
    """

    nearest: str
    percentile: float


def familiarity_of(
    point: Float[np.ndarray, " width"], anchors: Mapping[str, Float[np.ndarray, " width"]]
) -> Familiarity:
    """Compare the place of a matrix with those of the training matrices, by Euclidean distance.

    Raises:
        ValueError: there are fewer than two anchors.
    """
    if len(anchors) < 2:
        raise ValueError(f"{len(anchors)} anchors: familiarity needs the places of two training matrices")
    names, points = list(anchors), np.stack(list(anchors.values()))
    between = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(between, np.inf)
    distances = np.linalg.norm(points - point, axis=1)
    percentile = (between.min(axis=1) < distances.min()).mean() * 100
    return Familiarity(names[int(distances.argmin())], float(percentile))


Made = TypeVar("Made")


class OneEntryCache(Generic[Made]):
    """Makes something of a pattern, and gives it again until another pattern is asked about.

    Several operations and widths ask about one matrix in turn. The pattern itself is not kept alive.

    Args:
        make: what is made.
    """

    def __init__(self, make: Callable[[Pattern], Made]) -> None:
        self._make = make
        self._seen: tuple[weakref.ref[Pattern], Made] | None = None

    def get(self, pattern: Pattern) -> Made:
        """Make it, or take what was made."""
        seen = self._seen
        if seen is None or seen[0]() is not pattern:
            seen = self._seen = weakref.ref(pattern), self._make(pattern)
        return seen[1]


class Learner(Protocol):
    """A cost model that learns from labels; both methods return a copy and leave it as it is."""

    def with_seed(self, seed: int) -> Learner: ...
    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]) -> CostModel: ...


class Ensemble:
    """Average the members' scores of a matrix, each scaled to unit variance over the configurations that are asked for.

    A member that scores all of them equally says nothing and counts nothing.

    Args:
        members: learn from the same labels; each has one vote.
        guest: has learned elsewhere; has `votes`, which may be a fraction.
    """

    def __init__(self, *, members: Sequence[Learner], guest: CostModel | None = None, votes: float = 0.0) -> None:
        self.members, self.guest, self.votes = tuple(members), guest, votes

    def with_guest(self, guest: CostModel, votes: float) -> Ensemble:
        """Let a model vote that has learned elsewhere."""
        return Ensemble(members=self.members, guest=guest, votes=votes)

    def with_seed(self, seed: int) -> Ensemble:
        """Fix what is random in learning."""
        return self._with([member.with_seed(seed) for member in self.members])

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]) -> Ensemble:
        """Let every member learn; returns a new model."""
        return self._with([member.fit(labels, space=space, matrices=matrices) for member in self.members])

    def _with(self, members: Sequence[Learner]) -> Ensemble:
        return Ensemble(members=members, guest=self.guest, votes=self.votes)

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast, no unit; relative to the others that are asked for."""
        opinions = self.member_scores(matrix, configs)
        if self.guest is None:
            return opinions.mean(axis=0)
        foreign = _scaled(self.guest.score(matrix, configs))
        return (opinions.sum(axis=0) + self.votes * foreign) / (len(opinions) + self.votes)

    def member_scores(
        self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]
    ) -> Float[np.ndarray, "members configs"]:
        """Scores of every member, scaled; the guest is not asked."""
        view = as_features(matrix)
        return np.stack([_scaled(member.score(view, configs)) for member in self.members])


def _scaled(scores: np.ndarray) -> np.ndarray:
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else np.zeros(len(scores))
