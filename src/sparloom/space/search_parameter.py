"""One parameter of a search space: its values, their encoding for a model, and local moves.

In a column, a value is a float64 ("all" of an integer parameter is infinity) or, in categories that are no numbers and
in permutations, text. Its code is its position among the values, or the number itself in an interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.space.expressions import MAX_VALUES, number_of
from sparloom.space.grid import Config
from sparloom.space.shared import Value

KINDS = ("integer", "float", "categorical", "boolean", "permutation")
WORDS = {**dict.fromkeys(("false", "no", "off"), "0"), **dict.fromkeys(("true", "yes", "on"), "1")}  # of a boolean
LOG_SPAN = 4  # positive numbers that differ by more than this factor are encoded by their logarithm
FAR_DEVIATION = 0.1  # of a far move of a number with many values, as a share of its range
MANY_VALUES = 16


@dataclass(frozen=True)
class SearchParameter:
    """One parameter of a search space.

    Args:
        kind: one of `KINDS`. A boolean has the values 0 and 1, an integer may also be "all", and the values of a
            permutation are its items joined by dots, such as "k.i.j"; "kij" is read, too.
        default: its value in the default configuration, and wherever `when` does not hold.
        values: all of them, for example a range; at most 2**20.
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

    @classmethod
    def of_values(cls, name: str, values: Sequence[Any], default: Any = None) -> "SearchParameter":
        """Return the parameter with these values: boolean, categorical if there is text, or numbers.

        Args:
            default: the first value if it is none of them.
        """
        kinds = {"boolean": (bool, np.bool_), "categorical": str, "float": float, "integer": object}
        kind = next(kind for kind, types in kinds.items() if any(isinstance(each, types) for each in values))
        values = tuple(map(int, values) if kind in ("boolean", "integer") else values)
        return cls(name, kind, default if default in values else values[0], values)

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
        if self.interval is not None and not (self.kind == "float" and -math.inf < self.bounds[0] < self.bounds[1]):
            return f"{self.shown()} is no interval of a float: give two finite numbers, the lower one first"
        if self.interval is None:
            count = len(self.values)
            if not 1 <= count <= MAX_VALUES or len(set(self.values)) < count:
                return f"it has {count:,} values: give one to {MAX_VALUES:,}, each once"
            finite = self.listed[np.isfinite(self.listed)] if not self.is_text else None
            if self.kind in ("integer", "float", "boolean") and (
                    finite is None or (self.kind == "integer" and (finite % 1 != 0).any())):
                return f"{self.shown()}: these are no values of kind {self.kind}; give numbers, or kind categorical"
        if self.scale and not (self.is_number and (self.scale == "linear" or self.bounds[0] > 0)):
            return "only numbers have a scale, and only those above 0 a log scale"
        try:
            for value in self.values if self.is_text else ():
                Config("values", ((self.name, value),))
            self.parse(self.default)
        except (IllegalSchedule, ValueError) as error:
            return str(error)
        return None

    @cached_property
    def listed(self) -> np.ndarray:
        """The values as they are in columns; empty for an interval."""
        values = [math.inf if value == "all" and self.kind == "integer" else value for value in self.values]
        is_text = any(isinstance(value, str) for value in values)
        return np.array(list(map(str, self.values))) if is_text else np.array(values, np.float64)

    @property
    def is_text(self) -> bool:
        return self.listed.dtype.kind == "U"

    @property
    def is_number(self) -> bool:
        return self.kind in ("integer", "float")

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest number; "all" counts as twice the highest."""
        if self.interval is not None:
            return self.interval
        finite = self.listed[np.isfinite(self.listed)]
        low, high = float(finite.min(initial=math.inf)), float(finite.max(initial=-math.inf))
        return low, high if len(finite) == len(self.listed) else 2 * max(high, 1.0)

    @property
    def is_logarithmic(self) -> bool:
        low, high = self.bounds
        return self.scale == "log" or (self.scale is None and low > 0 and high > LOG_SPAN * low)

    def shown(self) -> str:
        """Say what values there are."""
        if self.interval is not None:
            return f"numbers from {self.interval[0]:g} to {self.interval[1]:g}"
        return f"its values are {', '.join(map(str, self.values[:20]))}{', ...' if len(self.values) > 20 else ''}"

    def parse(self, value: Any) -> Value:
        """Return the value of the parameter that a number or text means.

        Raises:
            IllegalSchedule: it is none of its values.
        """
        text = str(value).strip()
        if self.kind == "permutation" and "." not in text:
            text = ".".join(text)
        number = number_of(WORDS.get(text.lower(), text) if self.kind == "boolean" else text)
        number = math.inf if text == "all" else math.nan if number is None else number
        if self.interval is not None:
            if self.interval[0] <= number <= self.interval[1]:
                return number
        else:
            code = int(self.codes(np.array([text if self.is_text else number]))[0])
            if code >= 0:
                return self.values[code]
        raise IllegalSchedule(f"{self.name}={value!r} is not in the space: {self.shown()}")

    @cached_property
    def default_code(self) -> float:
        return self.default if self.interval else self.values.index(self.parse(self.default))

    def column(self, values: Sequence[Value]) -> np.ndarray:
        """Return values of the parameter as a column."""
        if self.is_text:
            return np.array(list(map(str, values)), str)
        return np.array([math.inf if value == "all" else value for value in values], np.float64)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return the values of codes as a column."""
        return codes if self.interval else self.listed[codes.astype(np.int64)]

    def codes(self, column: np.ndarray) -> np.ndarray:
        """Return the codes of a column; -1 where there is no such value."""
        if self.interval:
            return np.asarray(column, np.float64)
        ranks = np.searchsorted(self.listed, column, sorter=self._order)
        codes = self._order[np.minimum(ranks, len(self._order) - 1)]
        return np.where(self.listed[codes] == column, codes, -1)

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.listed, kind="stable")

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw codes: all values equally likely, numbers of an interval uniformly on their scale."""
        return self._nearest(rng.random(count)) if self.interval else rng.integers(len(self.values), size=count)

    def moves(self, code: float, rng: np.random.Generator) -> np.ndarray:
        """Return the codes that one local move leads to.

        A move goes to the next lower or higher number, with many values also by a Gaussian step; to another category;
        or swaps two items of a permutation.
        """
        if self.interval is None and len(self.values) == 1:
            return np.zeros(0)
        if self.kind == "permutation":
            words = np.array([str(value).split(".") for value in self.values])
            return np.flatnonzero((words != words[int(code)]).sum(axis=1) == 2)
        if not self.is_number:
            return np.setdiff1d(rng.permutation(len(self.values))[:MANY_VALUES], [code])
        share = self._scaled(self.decode(np.array([code])))
        far = self._nearest(np.clip(share + FAR_DEVIATION * rng.standard_normal(4), 0, 1))
        if self.interval:
            return far
        rank = int(np.flatnonzero(self._order == code)[0])
        near = self._order[max(0, rank - 1): rank + 2]
        return np.setdiff1d([*near, *far] if len(self.values) > MANY_VALUES else near, [code])

    def encode(self, column: np.ndarray) -> np.ndarray:
        """Encode values for a model: float64 (n, len(encoded_names)); see `SearchSpace.encode`."""
        if self.kind == "categorical":
            return np.eye(len(self.values))[self.codes(column)]
        if self.kind == "permutation":
            words = np.array([str(value).split(".") for value in self.values])[self.codes(column)]
            return (words[:, :, None] == self._items).argmax(axis=1) / (len(self._items) - 1)
        return self._scaled(column)[:, None]

    @property
    def encoded_names(self) -> list[str]:
        if self.kind == "categorical":
            return [f"{self.name}={value}" for value in self.values]
        return [f"{self.name}_{item}" for item in self._items] if self.kind == "permutation" else [self.name]

    @property
    def _items(self) -> list[str]:
        return sorted(str(self.values[0]).split("."))

    def _scaled(self, column: np.ndarray) -> np.ndarray:
        """Map numbers to [0, 1], linearly or by their logarithm."""
        low, high = self.bounds
        number = np.minimum(column, high)  # "all" is infinity
        return np.log(number / low) / math.log(high / low) if self.is_logarithmic else (number - low) / (high - low)

    def _nearest(self, share: np.ndarray) -> np.ndarray:
        """Return the codes of the values nearest to shares of the range."""
        low, high = self.bounds
        if self.interval:
            number = low * (high / low) ** share if self.is_logarithmic else low + (high - low) * share
            return np.clip(number, low, high)
        return np.abs(self._scaled(self.listed)[:, None] - share).argmin(axis=0)
