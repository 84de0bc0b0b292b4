"""What the surrogate of a tuning problem reads of configurations, and the priors of its hyperparameters.

`SpaceEncoding` serves any space: the parameters, products of those that constraints read together, powers of two in
whole numbers, features of the problem, and an effect that every value of a parameter has by itself. `WalkEncoding`
serves platforms that say how a configuration walks a sparse matrix, whose features it shares with the cost models.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sparloom.errors import SchemaError
from sparloom.models import Estimator, MatrixFeatures, Points, Priors
from sparloom.models.surrogate import LENGTH
from sparloom.space import Columns, Config, SearchSpace

MAX_PAIRED = 5  # parameters of a space in which all products of two are features
MAX_PAIRS = 30
MAX_POWER = 8  # of two, that divides a whole number
LEVEL_VARIANCE = (np.log(10.0), 2.0)  # prior of how much problems differ in their mean; logarithm
EFFECT_VARIANCE = (np.log(0.1), 1.0)  # prior of the effect that one value of a parameter has by itself
MAX_EFFECTS = 32  # values of a parameter that have an effect each; of more, the effect is a slope
SLOPE_VARIANCE = (0.0, 1.5)  # prior of the linear part in features of a walk
WALK_DEVIATION = 2.0  # of the prior of the length in features of a walk


class Encoding(Protocol):
    """Turns configurations of named problems into points of a surrogate."""

    priors: Priors

    def points(self, problem: str, columns: Columns) -> Points:
        """Encode configurations of one problem."""

    def expected(self, problem: str, columns: Columns) -> np.ndarray:
        """Return log seconds of configurations (n,) as far as a formula knows them."""


@dataclass(frozen=True)
class SpaceEncoding:
    """Encode configurations by their parameters, and problems by their numbers and categories.

    Args:
        problems: features of every problem by name; all problems have the same ones.
    """

    space: SearchSpace
    problems: Mapping[str, Mapping[str, Any]]

    def points(self, problem: str, columns: Columns) -> Points:
        """Encode configurations of one problem, see `Encoding`."""
        parts = [self.space.encode(columns), *self._powers(columns), *self._products(columns)]
        count = len(next(iter(columns.values())))
        numbers = np.broadcast_to(self._numbers[problem], (count, len(self._numbers[problem])))
        level = np.zeros((count, self._levels))
        if self._levels:
            level[:, list(self.problems).index(problem)] = 1.0
        return Points(np.column_stack([*parts, numbers]), np.column_stack([level, *self._effects(columns)]))

    def expected(self, problem: str, columns: Columns) -> np.ndarray:
        """Return zeros: nothing is known before trials."""
        return np.zeros(len(next(iter(columns.values()))))

    @cached_property
    def priors(self) -> Priors:
        """One length for every parameter and every other feature; one variance for the means of problems, one for
        all effects."""
        shared = self.space.encoded_parameter
        groups = np.unique(shared, return_inverse=True)[1] if len(shared) else shared
        one = self.points(next(iter(self.problems)), self.space.columns([self.space.default()]))
        rest = one.smooth.shape[1] - len(groups)
        groups = np.concatenate([groups, groups.max(initial=-1) + 1 + np.arange(rest)]).astype(np.int64)
        slopes = [LEVEL_VARIANCE, EFFECT_VARIANCE] if self._levels else [EFFECT_VARIANCE]
        of_slope = np.full(one.linear.shape[1], len(slopes) - 1)
        of_slope[:self._levels] = 0
        return Priors(np.tile(LENGTH, (groups.max(initial=-1) + 1, 1)), np.array(slopes), groups, of_slope)

    @property
    def _levels(self) -> int:
        """How many problems have a level of their own: all of them, unless there is only one."""
        return len(self.problems) if len(self.problems) > 1 else 0

    def _effects(self, columns: Columns) -> list[np.ndarray]:
        """Return for every parameter which value it has, as columns of 0 and 1; of many values, what encodes them."""
        effects = []
        for each in self.space.parameters:
            column, count = columns[each.name], len(each.values)
            if 1 < count <= MAX_EFFECTS:
                effects.append(np.eye(count)[each.codes(column).astype(np.int64)])
            elif each.name in self.space.varied_names:
                effects.append(each.encode(column))
        return effects

    def _powers(self, columns: Columns) -> list[np.ndarray]:
        """Return the power of two in each whole number that is not always one, scaled to [0, 1]."""
        return [np.minimum(_twos(columns[name]), MAX_POWER) / high for name, high in self._powered.items()]

    @cached_property
    def _powered(self) -> Mapping[str, float]:
        """The parameters whose power of two is a feature -> its highest value."""
        highest = {}
        for each in self.space.parameters:
            if each.kind == "integer" and len(each.values) > 2:
                numbers = each.listed[np.isfinite(each.listed) & (each.listed > 0)]
                twos = _twos(numbers)
                if numbers.max(initial=0) > 4 and (numbers != 2**twos).any():
                    highest[each.name] = float(min(MAX_POWER, max(1, twos.max())))
        return highest

    def _products(self, columns: Columns) -> list[np.ndarray]:
        """Return logarithms of products, scaled to [0, 1]: of two parameters, and of all."""
        if not self._pairs:
            return []
        shares = (self.space.log_numbers(columns) - self._low) / self._width
        weighted = shares * self._width
        sums = [(weighted[:, list(pair)].sum(axis=1)) / self._width[list(pair)].sum() for pair in self._pairs]
        return [*sums, weighted.sum(axis=1) / self._width.sum()] if len(self._width) > 2 else sums

    @cached_property
    def _bounds(self) -> np.ndarray:
        bounds = {each.name: each.bounds for each in self.space.parameters if each.is_number}
        return np.log2([bounds[name] for name in self.space.log_number_names]).reshape(-1, 2)

    @property
    def _low(self) -> np.ndarray:
        return self._bounds[:, 0]

    @property
    def _width(self) -> np.ndarray:
        return self._bounds[:, 1] - self._bounds[:, 0]

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        """The pairs of positive numbers that a constraint reads together; all of them if there are few."""
        names = self.space.log_number_names
        pairs = list(itertools.combinations(range(len(names)), 2))
        if len(names) > MAX_PAIRED:
            together = [set(read) for read in self.space.constraint_names]
            pairs = [pair for pair in pairs if any({names[index] for index in pair} <= read for read in together)]
        return pairs[:MAX_PAIRS]

    @cached_property
    def _numbers(self) -> Mapping[str, np.ndarray]:
        """Features of problems, numbers scaled to [0, 1] and categories as one number each."""
        listed = list(self.problems.values())
        columns = []
        for name in listed[0]:
            values = [each[name] for each in listed]
            try:
                columns.extend(_scaled_numbers(np.array(values, np.float64)))
            except (TypeError, ValueError):
                words = sorted(set(map(str, values)))
                columns.extend(np.array([str(value) == word for value in values], np.float64) for word in words[1:])
        rows = np.array(columns).reshape(len(columns), len(listed)).T
        return dict(zip(self.problems, rows, strict=True))


class WalkEncoding:
    """Encode configurations of sparse matrices by the features that cost models of a platform read, and by parameters.

    The features are standardised, and share one length and one slope.

    Args:
        programs: of every matrix, over which features are standardised.
        estimator: seconds by a formula of the platform, whose logarithm is one more feature.
    """

    def __init__(
        self, space: SearchSpace, matrices: Mapping[str, MatrixFeatures],
        programs: Mapping[str, Sequence[Config]], estimator: Estimator | None,
    ) -> None:
        if space.grid is None:
            raise SchemaError(f"space {space.name} has no walks: it is not that of a platform")
        self._space, self._matrices, self._estimator = space, matrices, estimator
        everything = np.concatenate([self._features(name, listed) for name, listed in programs.items()])
        spread = everything.std(axis=0)
        self._mean, self._spread = everything.mean(axis=0), np.where(spread > 1e-6, spread, np.inf)
        width = everything.shape[1]
        of_parameter = 1 + np.unique(space.encoded_parameter, return_inverse=True)[1]
        lengths = [(np.log(np.sqrt(width)), WALK_DEVIATION), *[LENGTH] * of_parameter.max(initial=0)]
        self.priors = Priors(np.array(lengths), np.array([SLOPE_VARIANCE]),
                             np.concatenate([np.zeros(width, np.int64), of_parameter]), np.zeros(width, np.int64))

    def points(self, problem: str, columns: Columns) -> Points:
        """Encode configurations of one matrix, see `Encoding`."""
        scaled = (self._features(problem, self._space.configs(columns)) - self._mean) / self._spread
        return Points(np.column_stack([scaled, self._space.encode(columns)]), scaled / np.sqrt(scaled.shape[1]))

    def expected(self, problem: str, columns: Columns) -> np.ndarray:
        """Return log seconds as estimated, or of one nonzero a second if there is no formula."""
        matrix = self._matrices[problem]
        if self._estimator is None:
            return np.full(len(next(iter(columns.values()))), np.log(max(1, matrix.nnz)))
        return np.log(self._estimator(matrix, self._space.configs(columns)))

    def _features(self, name: str, configs: Sequence[Config]) -> np.ndarray:
        from sparloom.models import configuration_features  # loads LightGBM, which other spaces do not need

        matrix = self._matrices[name]
        features = configuration_features(matrix, configs, self._space.grid)
        if self._estimator is None:
            return features
        return np.column_stack([features, np.log2(self._estimator(matrix, configs) / max(1, matrix.nnz))])


def _twos(numbers: np.ndarray) -> np.ndarray:
    """Return the power of two in whole numbers; 0 for others, and for 0 and infinity."""
    whole = np.where(np.isfinite(numbers), numbers, 0).astype(np.int64)
    lowest = whole & -whole
    return np.where(lowest > 0, np.log2(np.maximum(lowest, 1)), 0.0)


def _scaled_numbers(values: np.ndarray) -> list[np.ndarray]:
    """Scale a feature of problems to [0, 1], by its logarithm where it is positive; leave out a constant."""
    values = np.log2(values) if (values > 0).all() else values
    span = np.ptp(values)
    return [(values - values.min()) / span] if span > 0 else []
