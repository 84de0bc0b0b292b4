"""Search spaces of any size: parameters, constraints between them, and the points that an optimizer works with.

A set of configurations is a dict of columns, name -> array of values of one length, see `search_parameter`. `points`
lists and draws valid ones; parameters that share no constraint or condition are independent, which keeps lists short.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.space.expressions import Columns, Expression
from sparloom.space.grid import Config, GridSpace
from sparloom.space.points import GridRules, Points, Rule
from sparloom.space.search_parameter import SearchParameter
from sparloom.space.shared import Value

MAX_CACHED_BYTES = 2**26  # of listed points
MAX_ROUNDS = 16  # in which a sample is drawn; one or two unless the space has hardly more points


@dataclass(frozen=True)
class SearchSpace:
    """Parameters, and the constraints that a valid configuration satisfies.

    A parameter that is not active has its default, so that configurations which differ in nothing else are one.

    Args:
        name: of the space; every configuration holds it.
        parameters: in the order of every configuration.
        constraints: expressions over parameters and features, all of which hold for a valid configuration.
        features: names of numbers of the problem that constraints may read, such as its rows. Methods take their values
            as `features=`; where the problem is not known (None), constraints that read features are not checked.
        grid: an existing space whose rules hold, too; see `from_grid`.

    Raises:
        SchemaError: a name is given twice, an expression is faulty or reads another name, or conditions are circular.
    """

    name: str
    parameters: tuple[SearchParameter, ...]
    constraints: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    grid: GridSpace | None = None

    def __post_init__(self) -> None:
        names = [*self.names, *self.features]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice or not self.parameters:
            raise SchemaError(f"space {self.name}: {f'{twice} is given twice' if twice else 'it has no parameters'}")
        try:
            columns = {**self.columns([self.default()]), **dict.fromkeys(self.features, np.ones(1))}
            for rule in (*self._rules, *self._conditions.values()):
                rule.holds(columns)  # so that text is not used as a number
                if not set(rule.names) & set(self.names):
                    raise SchemaError(f"constraint {rule.text!r} reads no parameter")
        except (SchemaError, ValueError) as error:
            raise SchemaError(f"space {self.name}: {error}") from None

    @classmethod
    def from_grid(cls, grid: GridSpace) -> "SearchSpace":
        """Make a search space of an existing one; which programs are the same on a shape is left to the grid."""
        parameters = []
        for each, default in zip(grid.parameters, grid.defaults, strict=True):
            numeric = all(value == "all" or not isinstance(value, str) for value in each.values)
            kind = "categorical" if not numeric else "boolean" if set(each.values) == {0, 1} else "integer"
            parameters.append(SearchParameter(each.name, kind, default, each.values))
        return cls(grid.name, tuple(parameters), grid=grid)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.parameters)

    @property
    def size(self) -> float:
        """Count the points of the grid before constraints: an integer, or infinity if a parameter is continuous."""
        return math.prod(math.inf if each.interval else len(each.values) for each in self.parameters)

    def digest(self) -> str:
        """Hash everything that the space means to 16 hexadecimal digits."""
        parameters = [[each.name, each.kind, each.default, repr(each.values), each.interval, each.scale, each.when]
                      for each in self.parameters]
        content = [self.name, parameters, self.constraints, self.features, self.grid and self.grid.digest()]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def default(self) -> Config:
        """Return the default configuration, which need not satisfy the constraints on every problem."""
        return self._config([each.parse(each.default) for each in self.parameters])

    def parse(self, values: Mapping[str, Any] | str, features: Mapping[str, float] | None = None) -> Config:
        """Return the configuration of a mapping from all names to values or their texts, or of the key of one.

        Raises:
            IllegalSchedule: a parameter is unknown, missing or has no such value, or a constraint is violated.
        """
        if isinstance(values, str):
            values = dict(Config.parse(self.name, values).values)
        for name in (*values, *self.names):
            if name not in self.names or name not in values:
                reason = "is no parameter" if name in values else "is missing"
                raise IllegalSchedule(f"configuration {dict(values)}: {name!r} {reason}: give {', '.join(self.names)}")
        config = self.canonical(self._config([each.parse(values[each.name]) for each in self.parameters]))
        fault = self.fault(config, features)
        if fault:
            raise IllegalSchedule(f"{config} {fault}")
        return config

    def fault(self, config: Config, features: Mapping[str, float] | None = None) -> str | None:
        """Return why a configuration of values of the space is not valid, or None."""
        if self.canonical(config) != config:
            return f"is the same as {self.canonical(config)}: give parameters that are not active their defaults"
        rules, numbers = self._checked(features)
        for rule in rules:
            if not rule.holds({**self.columns([config]), **numbers}).all():
                facts = _facts({name: value for name, value in numbers.items() if name in rule.names})
                return f"violates {rule.text}{f' ({facts})' if facts else ''}"
        return None

    def canonical(self, config: Config) -> Config:
        """Give every parameter that is not active its default."""
        return self.configs(self.columns([config]))[0] if self._conditions else config

    def columns(self, configs: Sequence[Config]) -> dict[str, np.ndarray]:
        """Return the values of configurations as columns."""
        return self._canonical({each.name: each.column([config[each.name] for config in configs])
                                for each in self.parameters})

    def configs(self, columns: Columns) -> list[Config]:
        """Return the configurations of columns.

        Raises:
            IllegalSchedule: a value is none of its parameter.
        """
        columns, values = self._canonical(columns), []
        for each in self.parameters:
            codes = each.codes(columns[each.name])
            if not each.interval and (codes < 0).any():
                each.parse(columns[each.name][codes < 0][0])
            values.append(codes.tolist() if each.interval else [each.values[code] for code in codes])
        return list(map(self._config, zip(*values, strict=True)))

    def codes(self, columns: Columns) -> np.ndarray:
        """Return what identifies configurations: the codes of all parameters, float64 (n, parameters)."""
        return np.stack([each.codes(columns[each.name]) for each in self.parameters], axis=1).astype(np.float64)

    def decode(self, codes: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of codes."""
        return {each.name: each.decode(column) for each, column in zip(self.parameters, codes.T, strict=True)}

    def valid(self, columns: Columns, features: Mapping[str, float] | None = None) -> np.ndarray:
        """Return which configurations satisfy all constraints: bool (n,)."""
        rules, numbers = self._checked(features)
        columns = self._canonical(columns)
        holds = [rule.holds({**columns, **numbers}) for rule in rules]
        return np.logical_and.reduce([np.ones(_length(columns), bool), *holds])

    def enumerate(self, limit: int, features: Mapping[str, float] | None = None) -> dict[str, np.ndarray] | None:
        """List all distinct valid configurations; None if there are more than `limit`, or too many to tell."""
        points = self._points(features)
        total = math.prod(map(len, points))
        if total > limit or (total and any(each.rest for each in points)):
            return None
        return self._listed(points, np.arange(total))

    def sample(self, count: int, rng: np.random.Generator, features: Mapping[str, float] | None = None
               ) -> dict[str, np.ndarray]:
        """Draw distinct valid configurations, all equally likely; numbers of an interval uniformly on their scale.

        There are fewer than `count` if the space has no more, or if valid ones are too rare to be met.

        Raises:
            SchemaError: no valid configuration was met; names the constraints.
        """
        points = self._points(features)
        total = math.prod(math.inf if each.rest else len(each) for each in points)
        if 0 < total <= 4 * count:
            return self._listed(points, rng.permutation(int(total))[:count])
        codes = np.zeros((0, len(self.parameters)))
        for _ in range(MAX_ROUNDS):
            drawn = {name: column for each in points for name, column in each.draw(count, rng).items()}
            if not (rows := min(map(len, drawn.values()))):
                rules, numbers = self._checked(features)
                raise SchemaError(f"space {self.name}: no valid configuration was met{_facts(numbers) and ' for '}"
                                  f"{_facts(numbers)}: relax {'; '.join(rule.text for rule in rules)}")
            codes = np.concatenate([codes, np.stack([drawn[name][:rows] for name in self.names], axis=1)])
            codes = codes[np.sort(np.unique(codes, axis=0, return_index=True)[1])]
            if len(codes) >= count:
                break
        return self.decode(codes[:count])

    def neighbours(self, config: Config, rng: np.random.Generator, count: int,
                   features: Mapping[str, float] | None = None) -> dict[str, np.ndarray]:
        """Return at most `count` distinct valid configurations near one: moves of one parameter, and of two at once.

        `SearchParameter.moves` says what a move is.
        """
        start = self.codes(self.columns([config]))
        moves = [each.moves(code, rng) for each, code in zip(self.parameters, start[0], strict=True)]
        moved = np.repeat(np.arange(len(moves)), list(map(len, moves)))  # the parameter of each move
        reached = np.concatenate(moves)
        pairs = rng.integers(len(moved), size=(8 * count if len(moved) else 0, 2))
        pairs = pairs[moved[pairs[:, 0]] != moved[pairs[:, 1]]]
        codes = np.tile(start, (len(moved) + len(pairs), 1))
        codes[np.arange(len(moved)), moved] = reached
        for each in pairs.T:
            codes[len(moved) + np.arange(len(pairs)), moved[each]] = reached[each]
        columns = self._canonical(self.decode(codes))
        codes = self.codes(columns)
        usable = self.valid(columns, features) & (codes != start).any(axis=1)
        usable &= np.isin(np.arange(len(codes)), np.unique(codes, axis=0, return_index=True)[1])
        one, two = (rng.permutation(np.flatnonzero(part)) for part in np.split(usable, [len(moved)]))
        two = two[: max(count // 2, count - len(one))] + len(moved)
        chosen = np.concatenate([one[: count - len(two)], two])
        return {name: column[chosen] for name, column in columns.items()}

    def encode(self, columns: Columns) -> np.ndarray:
        """Encode configurations for a model: float64 (n, d), whose columns `encoded_names` names.

        Numbers are scaled to [0, 1] (see `SearchParameter.scale`), categories become one column each, and items of a
        permutation have their position, 0 for the first and 1 for the last. Parameters with one value are left out.
        """
        parts = [each.encode(columns[each.name]) for each in self._varied]
        return np.concatenate([np.zeros((_length(columns), 0)), *parts], axis=1)

    @property
    def encoded_names(self) -> tuple[str, ...]:
        return tuple(name for each in self._varied for name in each.encoded_names)

    @property
    def encoded_parameter(self) -> np.ndarray:
        """The index of the parameter of each encoded column."""
        return np.array([self.names.index(each.name) for each in self._varied for _ in each.encoded_names], np.int64)

    def log_numbers(self, columns: Columns) -> np.ndarray:
        """Return binary logarithms of the parameters in `log_number_names`: float64 (n, k); "all" is its bound."""
        logs = [np.log2(np.minimum(columns[each.name], each.bounds[1])) for each in self._positive]
        return np.array(logs).reshape(len(logs), _length(columns)).T

    @property
    def log_number_names(self) -> tuple[str, ...]:
        """The numbers with several values, all above 0."""
        return tuple(each.name for each in self._positive)

    @property
    def varied_names(self) -> tuple[str, ...]:
        """The parameters that have several values."""
        return tuple(each.name for each in self._varied)

    @property
    def constraint_names(self) -> tuple[tuple[str, ...], ...]:
        """The names that each constraint reads."""
        return tuple(rule.names for rule in self._rules)

    @cached_property
    def _varied(self) -> list[SearchParameter]:
        return [each for each in self.parameters if each.interval or len(each.values) > 1]

    @cached_property
    def _positive(self) -> list[SearchParameter]:
        return [each for each in self._varied if each.is_number and each.bounds[0] > 0]

    @cached_property
    def _conditions(self) -> dict[str, Rule]:
        """The conditions of parameters that are not always active, those that others read first."""
        conditions = {each.name: Expression(each.when, self.names) for each in self.parameters if each.when}
        return {name: conditions[name] for name in self._sorted_by(conditions) if name in conditions}

    @cached_property
    def _rules(self) -> list[Rule]:
        rules: list[Rule] = [Expression(text, (*self.names, *self.features)) for text in self.constraints]
        if self.grid is not None and self.grid.coupled:
            coupled = (each for each in self.parameters if each.name in self.grid.coupled)
            rules.append(GridRules(self.grid, tuple(coupled)))
        return rules

    def _sorted_by(self, conditions: Mapping[str, Rule]) -> list[str]:
        """Sort the names of parameters, those that conditions read first."""
        reads = {name: conditions[name].names if name in conditions else () for name in self.names}
        try:
            return list(TopologicalSorter(reads).static_order())
        except CycleError as error:
            raise SchemaError(f"conditions are circular: {' needs '.join(error.args[1])}") from None

    @cached_property
    def _groups(self) -> list[list[SearchParameter]]:
        """Parameters that share constraints or conditions, directly or not."""
        groups = [{name} for name in self.names]
        for names in [rule.names for rule in self._rules] + [
                (name, *condition.names) for name, condition in self._conditions.items()]:
            joined = [group for group in groups if group & set(names)]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
        order = self._sorted_by(self._conditions)
        by_name = dict(zip(self.names, self.parameters, strict=True))
        return [[by_name[name] for name in order if name in group] for group in groups]

    @cached_property
    def _cached_points(self) -> dict[tuple[Any, ...], Points]:
        return {}

    def _points(self, features: Mapping[str, float] | None) -> list[Points]:
        """Return the points of each group of parameters, which are kept for the next call."""
        rules, numbers = self._checked(features)
        listed = []
        for number, group in enumerate(self._groups):
            names = {each.name for each in group}
            shared = [rule for rule in rules if names & set(rule.names)]
            read = {name: value for name, value in numbers.items() if any(name in rule.names for rule in shared)}
            key = (number, len(shared), *read.items())
            if key not in self._cached_points:
                if sum(each.nbytes for each in self._cached_points.values()) > MAX_CACHED_BYTES:
                    self._cached_points.clear()
                self._cached_points[key] = Points(group, self._conditions, shared, read)
            listed.append(self._cached_points[key])
        return listed

    def _checked(self, features: Mapping[str, float] | None) -> tuple[list[Rule], dict[str, np.ndarray]]:
        """Return the constraints that can be checked, and the features that they read."""
        if features is None:
            return [rule for rule in self._rules if not set(rule.names) & set(self.features)], {}
        read = sorted({name for rule in self._rules for name in rule.names} & set(self.features))
        missing = [name for name in read if name not in features]
        if missing:
            raise SchemaError(f"space {self.name}: constraints read {', '.join(missing)}, which the problem does not "
                              f"have; it has {', '.join(features) or 'no features'}")
        return self._rules, {name: np.float64(features[name]) for name in read}

    def _config(self, values: Iterable[Value]) -> Config:
        return Config(self.name, tuple(zip(self.names, values, strict=True)))

    def _canonical(self, columns: Columns) -> dict[str, np.ndarray]:
        """Set parameters that are not active to their defaults."""
        columns = {name: np.asarray(columns[name]) for name in self.names}
        for name, condition in self._conditions.items():
            parameter = self.parameters[self.names.index(name)]
            default = parameter.decode(np.array(parameter.default_code))
            columns[name] = np.where(condition.holds(columns), columns[name], default)
        return columns

    def _listed(self, points: Sequence[Points], indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return some of the combinations of points that are all listed."""
        codes = {}
        for each in points:
            indices, rows = np.divmod(indices, len(each))
            codes |= {name: column[rows] for name, column in each.codes.items()}
        return {each.name: each.decode(codes[each.name]) for each in self.parameters}


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _facts(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in numbers.items())
