"""Search spaces of any size: parameters, constraints between them, and the points that an optimizer works with.

A set of configurations is a dict of columns, name -> array of values of one length: float64 for numbers ("all" of an
integer parameter is infinity), text for categories that are no numbers and for permutations.

Parameters that share no constraint or condition are independent. For each group of dependent ones, `_part` lists the
valid combinations of as many parameters as it can, and drops those that violate a constraint as soon as all of its
names have values. What is left is drawn and rejected, so that all valid points are equally likely.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from numbers import Real
from typing import Any, Literal, Protocol

import numpy as np

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.space.expressions import Columns, Expression, number_of
from sparloom.space.grid import Config, GridSpace
from sparloom.space.shared import Value

KINDS = ("integer", "float", "categorical", "boolean", "permutation")
FALSE, TRUE = ("0", "false", "no", "off"), ("1", "true", "yes", "on")
MAX_LISTED_ROWS = 2**20  # valid partial configurations of a group of dependent parameters
MAX_VISITED_ROWS = 2**24  # combinations that are checked for one more parameter
MAX_DRAWN_ROWS = 2**22  # combinations of one group that are drawn and rejected in one call
BLOCK_ROWS = 2**16  # combinations that are checked at once
MAX_CACHED_PARTS = 32
LOG_SPAN = 4  # positive numbers that differ by more than this factor are encoded by their logarithm
STEP_DEVIATION = 0.1  # of a step of a number with many values, as a share of its range
MANY_VALUES = 16


@dataclass(frozen=True)
class SearchParameter:
    """One parameter of a search space.

    Args:
        kind: one of `KINDS`. A boolean has the values 0 and 1, an integer may also be "all", and the values of a
            permutation are its items joined by dots, such as "k.i.j".
        default: its value in the default configuration, and wherever `when` does not hold.
        values: all of them, for example a range.
        interval: lowest and highest number of a float, instead of `values`.
        scale: how numbers are encoded and, in an interval, drawn; by default the logarithm for positive values that
            span more than a factor of 4.
        when: expression over other parameters; the parameter is active where it holds. Empty: always.

    Raises:
        SchemaError: the values do not fit the kind, or the default is none of them.
    """

    name: str
    kind: str
    default: Value
    values: Sequence[Value] = ()
    interval: tuple[float, float] | None = None
    scale: Literal["linear", "log"] | None = None
    when: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.values, range):
            values = tuple(int(value) if isinstance(value, bool) else value for value in self.values)
            object.__setattr__(self, "values", values)
        fault = self._fault()
        if fault:
            raise SchemaError(f"parameter {self.name}: {fault}")

    def _fault(self) -> str | None:
        if self.kind not in KINDS:
            return f"kind {self.kind!r} is not one of {', '.join(KINDS)}"
        if self.interval is not None:
            low, high = self.interval
            if self.kind != "float" or not -math.inf < low < high < math.inf:
                return f"the interval {low} to {high} must be that of a float, and finite, the lower end first"
        elif not self.values or (not isinstance(self.values, range) and len(set(self.values)) < len(self.values)):
            return "give one or more values, each once"
        elif self.kind in ("integer", "float", "boolean") and self.numbers is None:
            return f"values of kind {self.kind} are numbers: correct them, or give kind categorical"
        elif self.kind == "integer" and (self.numbers != np.floor(self.numbers)).any():
            return "values of an integer are whole: give kind float"
        if self.scale is not None and not self.is_number:
            return "only numbers have a scale"
        if self.scale == "log" and self.bounds[0] <= 0:
            return f"a log scale needs values above 0, not {self.bounds[0]:g}"
        try:
            self.parse(self.default)
        except IllegalSchedule as error:
            return f"default: {error}"
        return None

    @cached_property
    def numbers(self) -> np.ndarray | None:
        """The listed values as float64 (n,), with infinity for "all"; None if some are text; empty for a range."""
        if self.interval is not None or isinstance(self.values, range):
            return np.zeros(0)
        values = [math.inf if value == "all" and self.kind == "integer" else value for value in self.values]
        return None if any(isinstance(value, str) for value in values) else np.array(values, np.float64)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest number; "all" is one step, or a factor of 2, above the other numbers."""
        if self.interval is not None:
            return self.interval
        if isinstance(self.values, range):
            return float(min(self.values[0], self.values[-1])), float(max(self.values[0], self.values[-1]))
        finite = self.numbers[np.isfinite(self.numbers)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (1.0, 1.0)
        if finite.size == len(self.numbers):
            return low, high
        return low, 2 * high if low > 0 else high + (high - low) / max(1, len(finite) - 1) + (low == high)

    @property
    def is_logarithmic(self) -> bool:
        low, high = self.bounds
        return self.scale == "log" or (self.scale is None and low > 0 and high > LOG_SPAN * low)

    @property
    def is_number(self) -> bool:
        return self.kind in ("integer", "float")

    def parse(self, value: Any) -> Value:
        """Return the value of the parameter that a number or text means.

        Raises:
            IllegalSchedule: it is none of its values.
        """
        text = str(value).strip()
        if self.kind == "boolean" and text.lower() in (*FALSE, *TRUE):
            return int(text.lower() in TRUE)
        number = float(value) if isinstance(value, (Real, np.bool_)) else number_of(text)
        if self.interval is not None:
            if number is not None and self.interval[0] <= number <= self.interval[1]:
                return number
        elif number is not None and (isinstance(self.values, range) or self.numbers is not None):
            code = int(self.codes(np.array([number]))[0])
            if code >= 0:
                return self.values[code]
        elif text in self._texts:
            return self._texts[text]
        raise IllegalSchedule(f"{self.name}={value!r} is not in the space: {self.shown()}")

    def shown(self) -> str:
        """Say what values there are."""
        if self.interval is not None:
            return f"numbers from {self.interval[0]:g} to {self.interval[1]:g}"
        if isinstance(self.values, range):
            step = f" in steps of {self.values.step}" if self.values.step != 1 else ""
            return f"whole numbers from {self.values[0]} to {self.values[-1]}{step}"
        listed = ", ".join(map(str, self.values[:20]))
        return f"its values are {listed}{', ...' if len(self.values) > 20 else ''}"

    @cached_property
    def _texts(self) -> dict[str, Value]:
        return {str(value): value for value in self.values}

    @cached_property
    def _listed(self) -> np.ndarray:
        return np.array([str(value) for value in self.values]) if self.numbers is None else self.numbers

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return the values at some positions in `values`; numbers of an interval are their own codes."""
        if self.interval is not None:
            return codes
        if isinstance(self.values, range):
            return self.values.start + self.values.step * codes.astype(np.float64)
        return self._listed[codes.astype(np.int64)]

    def codes(self, column: np.ndarray) -> np.ndarray:
        """Return the positions of values, -1 where there is no such value."""
        if self.interval is not None:
            return np.asarray(column, np.float64)
        if isinstance(self.values, range):
            position = (np.asarray(column, np.float64) - self.values.start) / self.values.step
            inside = (position >= 0) & (position < len(self.values)) & (position == np.floor(position))
            return np.where(inside, position, -1).astype(np.int64)
        order = self._order
        column = np.asarray(column, str if self.numbers is None else np.float64)
        codes = order[np.minimum(np.searchsorted(self._listed, column, sorter=order), len(order) - 1)]
        return np.where(self._listed[codes] == column, codes, -1)

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self._listed, kind="stable")

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw codes: positions in `values` uniformly, numbers of an interval uniformly on their scale."""
        if self.interval is None:
            return rng.integers(len(self.values), size=count)
        return self.unscaled(rng.random(count))

    def scaled(self, column: np.ndarray) -> np.ndarray:
        """Map numbers to [0, 1], linearly or by their logarithm."""
        low, high = self.bounds
        number = np.minimum(column, high)  # "all" is infinity
        if self.is_logarithmic:
            return np.log(number / low) / math.log(high / low)
        return (number - low) / (high - low)

    def unscaled(self, share: np.ndarray) -> np.ndarray:
        """Return the codes of the values nearest to shares of the range."""
        low, high = self.bounds
        number = low * (high / low) ** share if self.is_logarithmic else low + (high - low) * share
        if self.interval is not None:
            return np.clip(number, low, high)
        if isinstance(self.values, range):
            return np.round((number - self.values.start) / self.values.step).astype(np.int64)
        return np.abs(self.scaled(self.numbers)[:, None] - share).argmin(axis=0)

    def neighbours(self, code: float, rng: np.random.Generator) -> np.ndarray:
        """Return the codes that one local move leads to: next numbers, other categories, two items swapped."""
        if self.interval is None and len(self.values) == 1:
            return np.zeros(0)
        if self.is_number:
            position = self.scaled(self.decode(np.array([code])))
            far = self.unscaled(np.clip(position + STEP_DEVIATION * rng.standard_normal(4), 0, 1))
            if self.interval is not None:
                return far
            near = np.array([code - 1, code + 1])
            if not isinstance(self.values, range):
                rank = int(np.flatnonzero(self._order == code)[0])
                near = self._order[[each for each in (rank - 1, rank + 1) if 0 <= each < len(self.values)]]
            reached = near if len(self.values) <= MANY_VALUES else np.concatenate([near, far])
            return np.unique(reached[(reached != code) & (reached >= 0) & (reached < len(self.values))])
        if self.kind == "permutation":
            items = str(self.values[int(code)]).split(".")
            swaps = []
            for first, second in combinations(range(len(items)), 2):
                swapped = list(items)
                swapped[first], swapped[second] = items[second], items[first]
                swaps.append(".".join(swapped))
            reached = self.codes(np.array(swaps))
            return reached[reached >= 0]
        return np.setdiff1d(rng.permutation(len(self.values))[:MANY_VALUES], [code])


class _Rule(Protocol):
    """A constraint: an `Expression`, or what a grid refuses."""

    text: str
    names: tuple[str, ...]

    def holds(self, columns: Columns) -> np.ndarray: ...


@dataclass(frozen=True)
class _Refusal:
    """The combinations that a grid refuses, as a constraint over its coupled parameters."""

    grid: GridSpace
    parameters: tuple[SearchParameter, ...]

    @property
    def text(self) -> str:
        return f"the rules of {self.grid.name}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.parameters)

    def holds(self, columns: Columns) -> np.ndarray:
        codes = np.stack([each.codes(columns[each.name]) for each in self.parameters], axis=-1)
        rows, positions = np.unique(codes, axis=0, return_inverse=True)
        legal = [self.grid.refuse(self.grid.default().replace(**{
            each.name: each.values[code] for each, code in zip(self.parameters, row, strict=True)})) is None
            for row in rows]
        return np.array(legal, bool)[positions.ravel()]


@dataclass(frozen=True)
class _Part:
    """What is listed of the valid points of dependent parameters.

    Args:
        codes: the listed combinations of the first parameters.
        rest: the other parameters, which are drawn.
        rules: those that read parameters of the rest.
        shares: cumulative share of the points that each combination may lead to; None: all the same.
    """

    codes: Mapping[str, np.ndarray]
    rest: tuple[SearchParameter, ...]
    rules: tuple[_Rule, ...]
    shares: np.ndarray | None

    def __len__(self) -> int:
        return len(next(iter(self.codes.values()), (0,)))


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
            self._sorted  # noqa: B018
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
        if any(each.interval for each in self.parameters):
            return math.inf
        return math.prod(len(each.values) for each in self.parameters)

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
        columns, known = self.columns([config]), self._known(features)
        for rule in self._checked(known):
            if not rule.holds({**columns, **known}).all():
                facts = ", ".join(f"{name}={known[name]:g}" for name in rule.names if name in known)
                raise IllegalSchedule(f"{config} violates {rule.text}{f' ({facts})' if facts else ''}")
        return config

    def canonical(self, config: Config) -> Config:
        """Give every parameter that is not active its default."""
        return self.configs(self.columns([config]))[0] if self._conditions else config

    def columns(self, configs: Sequence[Config]) -> dict[str, np.ndarray]:
        """Return the values of configurations as columns."""
        found = {}
        for each in self.parameters:
            values = [config[each.name] for config in configs]
            if each.interval is None and each.numbers is None:
                found[each.name] = np.array(list(map(str, values)), str)
            else:
                found[each.name] = np.array([math.inf if value == "all" else value for value in values], np.float64)
        return self._canonical(found)

    def configs(self, columns: Columns) -> list[Config]:
        """Return the configurations of columns.

        Raises:
            IllegalSchedule: a value is none of its parameter.
        """
        columns, values = self._canonical(columns), []
        for each in self.parameters:
            codes = each.codes(columns[each.name])
            if each.interval is None and (codes < 0).any():
                each.parse(columns[each.name][codes < 0][0])
            values.append(codes.tolist() if each.interval else [each.values[code] for code in codes])
        return list(map(self._config, zip(*values, strict=True)))

    def valid(self, columns: Columns, features: Mapping[str, float] | None = None) -> np.ndarray:
        """Return which configurations satisfy all constraints: bool (n,)."""
        columns, known = self._canonical(columns), self._known(features)
        holds = np.ones(len(columns[self.names[0]]), bool)
        for rule in self._checked(known):
            holds &= rule.holds({**columns, **known})
        return holds

    def enumerate(self, limit: int, features: Mapping[str, float] | None = None) -> dict[str, np.ndarray] | None:
        """List all distinct valid configurations; None if there are more than `limit`, or too many to tell."""
        parts = self._parts(features)
        total = math.prod(map(len, parts))
        if total > limit or (total and any(part.rest for part in parts)):
            return None
        return self._decoded(self._combined(parts, np.arange(total)))

    def sample(self, count: int, rng: np.random.Generator, features: Mapping[str, float] | None = None
               ) -> dict[str, np.ndarray]:
        """Draw distinct valid configurations, all equally likely; numbers of an interval uniformly on their scale.

        There are fewer than `count` if the space has no more, or if valid ones are too rare to be met.

        Raises:
            SchemaError: no valid configuration was met; names the constraints.
        """
        parts, known = self._parts(features), self._known(features)
        total = math.inf if any(part.rest for part in parts) else math.prod(map(len, parts))
        if 0 < total <= 4 * count:
            return self._decoded(self._combined(parts, rng.permutation(int(total))[:count]))
        codes = np.zeros((0, len(self.parameters)))
        for _ in range(16):  # more than enough, unless there are hardly more than `count`
            drawn = [self._draw(part, count, rng, known) for part in parts]
            rows = min(map(_length, drawn))
            if rows == 0:
                texts = "; ".join(rule.text for rule in self._checked(known))
                raise SchemaError(f"space {self.name}: no valid configuration was met{_facts(known)}: relax {texts}")
            fresh = {name: column[:rows] for each in drawn for name, column in each.items()}
            codes = np.concatenate([codes, np.stack([fresh[name] for name in self.names], axis=1)])
            codes = codes[np.sort(np.unique(codes, axis=0, return_index=True)[1])]
            if len(codes) >= count:
                break
        return self._decoded(dict(zip(self.names, codes[:count].T, strict=True)))

    def neighbours(self, config: Config, rng: np.random.Generator, count: int,
                   features: Mapping[str, float] | None = None) -> dict[str, np.ndarray]:
        """Return at most `count` distinct valid configurations near one: moves of one parameter, and of two at once.

        A move goes to the next lower or higher number, by a Gaussian step (intervals, and numbers with more than 16
        values), to another category, or swaps two items of a permutation.
        """
        start = np.array([each.codes(column)[0] for each, column in zip(
            self.parameters, self.columns([config]).values(), strict=True)], np.float64)
        moves = [each.neighbours(code, rng) for each, code in zip(self.parameters, start, strict=True)]
        singles = np.repeat(np.arange(len(moves)), list(map(len, moves)))  # the parameter of each move
        reached = np.concatenate(moves)
        pairs = rng.integers(len(singles), size=(8 * count if len(singles) else 0, 2))
        pairs = pairs[singles[pairs[:, 0]] != singles[pairs[:, 1]]]
        codes = np.tile(start, (len(singles) + len(pairs), 1))
        codes[np.arange(len(singles)), singles] = reached
        for each in pairs.T:
            codes[len(singles) + np.arange(len(pairs)), singles[each]] = reached[each]
        columns = self._canonical(self._decoded(dict(zip(self.names, codes.T, strict=True))))
        codes = np.stack([each.codes(columns[each.name]) for each in self.parameters], axis=1).astype(np.float64)
        usable = self.valid(columns, features) & (codes != start).any(axis=1)
        usable &= np.isin(np.arange(len(codes)), np.unique(codes, axis=0, return_index=True)[1])
        one, two = (rng.permutation(np.flatnonzero(part)) for part in np.split(usable, [len(singles)]))
        two = two[: max(count // 2, count - len(one))] + len(singles)
        chosen = np.concatenate([one[: count - len(two)], two])
        return {name: column[chosen] for name, column in columns.items()}

    def encode(self, columns: Columns) -> np.ndarray:
        """Encode configurations for a model: float64 (n, d), whose columns `encoded_names` names.

        Numbers are scaled to [0, 1] (see `SearchParameter.scale`), categories become one column each, and items of a
        permutation have their position, 0 for the first and 1 for the last. Parameters with one value are left out.
        """
        parts = [np.zeros((len(columns[self.names[0]]), 0))]
        for each in self._varied:
            column = columns[each.name]
            if each.kind in ("categorical", "permutation"):
                parts.append(self._code_tables[each.name][each.codes(column)])
            else:
                parts.append(each.scaled(column)[:, None])
        return np.concatenate(parts, axis=1)

    @property
    def encoded_names(self) -> tuple[str, ...]:
        return tuple(name for each in self._varied for name in _encoded_names(each))

    @property
    def encoded_parameter(self) -> np.ndarray:
        """The index of the parameter of each encoded column."""
        return np.array([self.names.index(each.name) for each in self._varied for _ in _encoded_names(each)], np.int64)

    def log_numbers(self, columns: Columns) -> np.ndarray:
        """Return the binary logarithms of the parameters in `log_number_names`: float64 (n, k); "all" is their top."""
        logs = [np.log2(np.minimum(columns[each.name], each.bounds[1])) for each in self._positive]
        return np.stack(logs, axis=1) if logs else np.zeros((len(columns[self.names[0]]), 0))

    @property
    def log_number_names(self) -> tuple[str, ...]:
        """The numbers with several values, all above 0."""
        return tuple(each.name for each in self._positive)

    @cached_property
    def _varied(self) -> tuple[SearchParameter, ...]:
        return tuple(each for each in self.parameters if each.interval or len(each.values) > 1)

    @cached_property
    def _positive(self) -> tuple[SearchParameter, ...]:
        return tuple(each for each in self._varied if each.is_number and each.bounds[0] > 0)

    @cached_property
    def _code_tables(self) -> dict[str, np.ndarray]:
        """For categories and permutations: code -> encoded columns."""
        tables = {}
        for each in self._varied:
            if each.kind == "categorical":
                tables[each.name] = np.eye(len(each.values))
            elif each.kind == "permutation":
                words = [str(value).split(".") for value in each.values]
                tables[each.name] = np.array([[word.index(item) for item in _items(each)] for word in words]) / (
                    len(words[0]) - 1)
        return tables

    @cached_property
    def _by_name(self) -> dict[str, SearchParameter]:
        return {each.name: each for each in self.parameters}

    @cached_property
    def _conditions(self) -> dict[str, Expression]:
        """The conditions of parameters that are not always active."""
        return {each.name: Expression(each.when, self.names) for each in self.parameters if each.when}

    @cached_property
    def _rules(self) -> tuple[_Rule, ...]:
        rules: list[_Rule] = [Expression(text, (*self.names, *self.features)) for text in self.constraints]
        if self.grid is not None and self.grid.coupled:
            rules.append(_Refusal(self.grid, tuple(self._by_name[name] for name in self.grid.coupled)))
        return tuple(rules)

    @cached_property
    def _sorted(self) -> tuple[str, ...]:
        """The names of parameters, those that conditions read before those that they make active."""
        reads = {name: self._conditions[name].names if name in self._conditions else () for name in self.names}
        try:
            return tuple(TopologicalSorter(reads).static_order())
        except CycleError as error:
            raise SchemaError(f"conditions are circular: {' needs '.join(error.args[1])}") from None

    @cached_property
    def _groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of parameters that share constraints or conditions, directly or not."""
        groups = [{name} for name in self.names]
        linked = [rule.names for rule in self._rules]
        linked += [(name, *condition.names) for name, condition in self._conditions.items()]
        for names in linked:
            joined = [group for group in groups if group & set(names)]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
        return tuple(tuple(name for name in self._sorted if name in group) for group in groups)

    @cached_property
    def _cached_parts(self) -> dict[tuple[Any, ...], _Part]:
        return {}

    def _config(self, values: Iterable[Value]) -> Config:
        return Config(self.name, tuple(zip(self.names, values, strict=True)))

    def _known(self, features: Mapping[str, float] | None) -> dict[str, np.ndarray]:
        """Return the features that constraints read, as scalars."""
        if features is None:
            return {}
        read = {name for rule in self._rules for name in rule.names} & set(self.features)
        missing = sorted(read - set(features))
        if missing:
            raise SchemaError(f"space {self.name}: constraints read {', '.join(missing)}, which the problem does not "
                              f"have; it has {', '.join(features) or 'no features'}")
        return {name: np.float64(features[name]) for name in sorted(read)}

    def _checked(self, known: Mapping[str, Any]) -> list[_Rule]:
        """Return the constraints whose features are known."""
        return [rule for rule in self._rules if set(rule.names) <= {*self.names, *known}]

    def _canonical(self, columns: Columns) -> dict[str, np.ndarray]:
        """Set parameters that are not active to their defaults."""
        columns = {name: np.asarray(columns[name]) for name in self.names}
        for name in self._sorted:
            if name in self._conditions:
                columns[name] = np.where(self._conditions[name].holds(columns), columns[name], self._default(name))
        return columns

    def _default(self, name: str) -> np.ndarray:
        """Return the default as it is in columns."""
        parameter = self._by_name[name]
        return parameter.decode(self._default_code(name).reshape(1))[0]

    def _default_code(self, name: str) -> np.ndarray:
        parameter = self._by_name[name]
        if parameter.interval:
            return np.float64(parameter.default)
        return np.int64(parameter.values.index(parameter.parse(parameter.default)))

    def _decoded(self, codes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: self._by_name[name].decode(codes[name]) for name in self.names}

    def _combined(self, parts: Sequence[_Part], points: np.ndarray) -> dict[str, np.ndarray]:
        """Return the codes of some points of the product of all parts."""
        codes = {}
        for part in parts:
            points, rows = np.divmod(points, len(part))
            codes |= {name: column[rows] for name, column in part.codes.items()}
        return codes

    def _parts(self, features: Mapping[str, float] | None) -> list[_Part]:
        """List the valid points of each group of parameters; kept for the next call."""
        known = self._known(features)
        parts = []
        for group in self._groups:
            rules = tuple(rule for rule in self._checked(known) if set(rule.names) & set(group))
            read = {name for rule in rules for name in rule.names}
            key = (group, len(rules), tuple((name, float(value)) for name, value in known.items() if name in read))
            if key not in self._cached_parts:
                while len(self._cached_parts) >= MAX_CACHED_PARTS:
                    del self._cached_parts[next(iter(self._cached_parts))]
                self._cached_parts[key] = self._part(group, rules, known)
            parts.append(self._cached_parts[key])
        return parts

    def _part(self, group: Sequence[str], rules: Sequence[_Rule], known: Mapping[str, Any]) -> _Part:
        """List the valid combinations of the first parameters of a group, as many as fit in memory."""
        order = self._ordered(group, rules)
        codes: dict[str, np.ndarray] = {}
        for name in order:
            bound = {name, *codes}
            ready = [rule for rule in rules if name in rule.names and set(rule.names) <= {*bound, *known}]
            grown = None if self._by_name[name].interval else self._grown(codes, name, ready, known)
            if grown is None:
                break
            codes = grown
        rest = tuple(self._by_name[name] for name in order[len(codes):])
        open_rules = tuple(rule for rule in rules if {each.name for each in rest} & set(rule.names))
        return _Part(codes, rest, open_rules, self._shares(codes, rest))

    def _ordered(self, group: Sequence[str], rules: Sequence[_Rule]) -> list[str]:
        """Order the parameters of a group so that constraints can be checked early, and conditions before use."""
        needs: dict[str, set[str]] = {}
        for name in self._sorted:
            parents = self._conditions[name].names if name in self._conditions else ()
            needs[name] = {name}.union(*(needs[each] for each in parents))
        sizes = {name: math.inf if any(self._by_name[each].interval for each in needs[name])
                 else float(len(self._by_name[name].values)) for name in group}
        open_sets = [set().union(*(needs[name] for name in rule.names if name in needs)) for rule in rules]
        open_sets.append(set(group))
        order: list[str] = []
        while len(order) < len(group):
            open_sets = [names for names in (each.difference(order) for each in open_sets) if names]
            nearest = min(open_sets, key=lambda names: math.prod(sizes[name] for name in names))
            usable = [name for name in group if name in nearest and not needs[name].difference({name}, order)]
            order.append(min(usable, key=sizes.__getitem__))
        return sorted(order, key=lambda name: sizes[name] == math.inf)

    def _grown(self, codes: Mapping[str, np.ndarray], name: str, rules: Sequence[_Rule], known: Mapping[str, Any]
               ) -> dict[str, np.ndarray] | None:
        """Extend listed combinations by one more parameter, or return None if there are too many."""
        parameter = self._by_name[name]
        rows, count = _length(codes) if codes else 1, len(parameter.values)
        if rows * count > MAX_VISITED_ROWS:
            return None
        read = {each for rule in rules for each in rule.names if each in codes}
        condition = self._conditions.get(name)
        read |= set(condition.names) if condition else set()
        kept, total = [(np.zeros(0, np.int64), np.zeros(0, np.int64))], 0
        for start in range(0, rows * count, BLOCK_ROWS):
            row, code = np.divmod(np.arange(start, min(start + BLOCK_ROWS, rows * count)), count)
            columns = {each: self._by_name[each].decode(codes[each][row]) for each in read}
            columns[name] = parameter.decode(code)
            usable = np.ones(len(row), bool)
            if condition:
                usable = condition.holds(columns) | (code == self._default_code(name))
            for rule in rules:
                usable = usable & rule.holds({**columns, **known})
            kept.append((row[usable], code[usable]))
            total += len(kept[-1][0])
            if total > MAX_LISTED_ROWS:
                return None
        row, code = (np.concatenate(each) for each in zip(*kept, strict=True))
        return {**{each: column[row] for each, column in codes.items()},
                name: code.astype(np.min_scalar_type(count - 1))}

    def _shares(self, codes: Mapping[str, np.ndarray], rest: Sequence[SearchParameter]) -> np.ndarray | None:
        """Return the cumulative share of combinations of the rest that each listed row leads to, before constraints."""
        weights = np.ones(_length(codes) if codes else 1)
        for each in rest:
            if self._is_decided(each, codes) and each.interval is None:
                columns = {name: self._by_name[name].decode(codes[name]) for name in self._conditions[each.name].names}
                weights = np.where(self._conditions[each.name].holds(columns), weights * len(each.values), weights)
        return None if (weights == weights[:1]).all() else np.cumsum(weights) / weights.sum()

    def _is_decided(self, parameter: SearchParameter, codes: Mapping[str, np.ndarray]) -> bool:
        """Return whether listed combinations decide if a parameter is active."""
        return parameter.name in self._conditions and set(self._conditions[parameter.name].names) <= set(codes)

    def _draw(self, part: _Part, count: int, rng: np.random.Generator, known: Mapping[str, Any]
              ) -> dict[str, np.ndarray]:
        """Draw independent valid points of a group, all equally likely; fewer than `count` if they are rare."""
        found, drawn, met = [], 0, 0
        rows = len(part)
        while met < count and drawn < MAX_DRAWN_ROWS and rows:
            size = count if not part.rest else min(BLOCK_ROWS, 2 * count * max(1, drawn) // max(1, met) + 64)
            row = rng.integers(rows, size=size) if part.shares is None else np.minimum(
                np.searchsorted(part.shares, rng.random(size), side="right"), rows - 1)
            codes = {name: column[row] for name, column in part.codes.items()}
            usable = np.ones(size, bool)
            columns = {name: self._by_name[name].decode(column) for name, column in codes.items()} if part.rest else {}
            for each in part.rest:
                code, default = each.draw(size, rng), self._default_code(each.name)
                if each.name in self._conditions:
                    active = self._conditions[each.name].holds(columns)
                    if each.interval is None and not self._is_decided(each, part.codes):
                        usable &= active | (code == default)  # one of its values stands for all
                    code = np.where(active, code, default)
                codes[each.name], columns[each.name] = code, each.decode(code)
            for rule in part.rules:
                usable &= rule.holds({**columns, **known})
            found.append({name: column[usable] for name, column in codes.items()})
            drawn, met = drawn + size, met + int(usable.sum())
        names = (*part.codes, *(each.name for each in part.rest))
        return {name: np.concatenate([each[name] for each in found] or [np.zeros(0)])[:count] for name in names}


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _facts(known: Mapping[str, Any]) -> str:
    return f" for {', '.join(f'{name}={value:g}' for name, value in known.items())}" if known else ""


def _items(parameter: SearchParameter) -> list[str]:
    return sorted(str(parameter.values[0]).split("."))


def _encoded_names(parameter: SearchParameter) -> list[str]:
    if parameter.kind == "categorical":
        return [f"{parameter.name}={value}" for value in parameter.values]
    if parameter.kind == "permutation":
        return [f"{parameter.name}_{item}" for item in _items(parameter)]
    return [parameter.name]
