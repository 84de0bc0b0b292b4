"""The valid points of parameters that share constraints or conditions: listed as far as possible, and drawn.

`Points` lists the valid combinations of as many parameters as it can, and drops those that violate a constraint as soon
as all of its names have values. The parameters that are left are drawn and rejected, so that all valid points are
equally likely: each listed combination is drawn in proportion to the points that it may lead to.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparloom.space.expressions import Columns
from sparloom.space.grid import GridSpace
from sparloom.space.search_parameter import SearchParameter

MAX_LISTED_ROWS = 2**20  # valid combinations
MAX_VISITED_ROWS = 2**24  # combinations that are checked to list one more parameter
MAX_DRAWN_ROWS = 2**22  # combinations that are drawn and rejected in one call
BLOCK_ROWS = 2**16  # combinations that are checked at once


class Rule(Protocol):
    """A constraint or condition: an `Expression`, or what a grid refuses."""

    text: str
    names: tuple[str, ...]

    def holds(self, columns: Columns) -> np.ndarray: ...


@dataclass(frozen=True)
class GridRules:
    """The combinations that an existing space refuses, as a constraint on its coupled parameters."""

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
        changes = ({each.name: each.values[code] for each, code in zip(self.parameters, row, strict=True)}
                   for row in rows)
        legal = [self.grid.refuse(self.grid.default().replace(**each)) is None for each in changes]
        return np.array(legal, bool)[positions.ravel()]


class Points:
    """The valid points of some parameters.

    Args:
        parameters: those that conditions read before those that they make active.
        conditions: by name of the parameter that is active where they hold.
        rules: constraints on the parameters.
        known: the features that the constraints read.

    Attributes:
        codes: the listed combinations, name -> codes.
        rest: the parameters that are not listed but drawn.
    """

    def __init__(self, parameters: Sequence[SearchParameter], conditions: Mapping[str, Rule], rules: Sequence[Rule],
                 known: Columns) -> None:
        self._parameters = {each.name: each for each in parameters}
        self._conditions, self._known = conditions, known
        self.codes: dict[str, np.ndarray] = {}
        order = self._order(rules)
        for name in order:
            bound = {name, *self.codes, *known}
            grown = self._grown(name, [each for each in rules if name in each.names and set(each.names) <= bound])
            if grown is None:
                break
            self.codes = grown
        self.rest = [self._parameters[name] for name in order[len(self.codes):]]
        self._rules = [each for each in rules if not set(each.names) <= {*self.codes, *known}]
        self._decided = {each.name for each in self.rest if each.name in conditions
                         and set(conditions[each.name].names) <= set(self.codes)}
        self._shares = self._weighted()

    def __len__(self) -> int:
        """Count the listed combinations, which are the valid points if there is no rest."""
        return len(next(iter(self.codes.values()), (0,)))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.codes.values())

    def draw(self, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw codes of independent valid points, all equally likely; fewer than `count` if they are rare."""
        found, drawn, met = [], 0, 0
        while met < count and drawn < MAX_DRAWN_ROWS and len(self):
            size = min(BLOCK_ROWS, 2 * count * max(1, drawn) // max(1, met) + 64) if self.rest else count
            rows = rng.integers(len(self), size=size)
            if self._shares is not None:
                rows = np.minimum(np.searchsorted(self._shares, rng.random(size), side="right"), len(self) - 1)
            found.append(self._completed({name: column[rows] for name, column in self.codes.items()}, size, rng))
            drawn, met = drawn + size, met + len(found[-1][next(iter(self._parameters))])
        return {name: np.concatenate([each[name] for each in found] or [np.zeros(0)])[:count]
                for name in self._parameters}

    def _completed(self, codes: dict[str, np.ndarray], size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the rest of combinations and keep the valid ones."""
        if not self.rest:
            return codes
        columns = {name: self._parameters[name].decode(column) for name, column in codes.items()}
        usable = np.ones(size, bool)
        for each in self.rest:
            code = each.draw(size, rng)
            if each.name in self._conditions:
                active = self._conditions[each.name].holds(columns)
                if each.interval is None and each.name not in self._decided:
                    usable &= active | (code == each.default_code)  # one value stands for all
                code = np.where(active, code, each.default_code)
            codes[each.name], columns[each.name] = code, each.decode(code)
        for rule in self._rules:
            usable &= rule.holds({**columns, **self._known})
        return {name: column[usable] for name, column in codes.items()}

    def _order(self, rules: Sequence[Rule]) -> list[str]:
        """Order names so that constraints can be checked early; intervals, which cannot be listed, come last."""
        needs: dict[str, set[str]] = {}
        for name in self._parameters:
            parents = self._conditions[name].names if name in self._conditions else ()
            needs[name] = {name}.union(*(needs[each] for each in parents))
        sizes = {name: math.inf if any(self._parameters[each].interval for each in needs[name])
                 else float(len(self._parameters[name].values)) for name in needs}
        groups = [set().union(*(needs[name] for name in rule.names if name in needs)) for rule in rules]
        groups.sort(key=lambda names: math.prod(sizes[name] for name in names))
        order = dict.fromkeys(name for names in (*groups, set(needs)) for name in needs if name in names)
        return sorted(order, key=lambda name: sizes[name] == math.inf)

    def _grown(self, name: str, rules: Sequence[Rule]) -> dict[str, np.ndarray] | None:
        """Extend the listed combinations by one more parameter; None if there are too many."""
        parameter, condition = self._parameters[name], self._conditions.get(name)
        count, kept, total = len(parameter.values), [], 0
        if parameter.interval or len(self) * count > MAX_VISITED_ROWS:
            return None
        read = {each for rule in (*rules, *([condition] if condition else ())) for each in rule.names} & set(self.codes)
        for start in range(0, len(self) * count, BLOCK_ROWS):
            row, code = np.divmod(np.arange(start, min(start + BLOCK_ROWS, len(self) * count)), count)
            columns = {each: self._parameters[each].decode(self.codes[each][row]) for each in read}
            columns = {**columns, name: parameter.decode(code), **self._known}
            usable = np.ones(len(row), bool)
            if condition:
                usable &= condition.holds(columns) | (code == parameter.default_code)
            for rule in rules:
                usable &= rule.holds(columns)
            kept.append((row[usable], code[usable].astype(np.min_scalar_type(count))))
            total += len(kept[-1][0])
            if total > MAX_LISTED_ROWS:
                return None
        row, code = (np.concatenate(each) for each in zip(*kept, strict=True)) if kept else np.zeros((2, 0), int)
        return {**{each: column[row] for each, column in self.codes.items()}, name: code}

    def _weighted(self) -> np.ndarray | None:
        """Return the cumulative share of points that each combination may lead to; None if all are equal."""
        weights = np.ones(len(self))
        for each in self.rest:
            if each.name in self._decided and not each.interval:
                condition = self._conditions[each.name]
                active = condition.holds({name: self._parameters[name].decode(self.codes[name])
                                          for name in condition.names})
                weights[active] *= len(each.values)
        return None if (weights == weights[:1]).all() else np.cumsum(weights) / weights.sum()
