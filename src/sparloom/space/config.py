"""One point of a platform's space: named values, comparable, hashable, printable.

Numbers for the hardware-specific parameters, the input of the latent encoder.

What all platforms share: strip-mined loops and their order (COGNATE §3.2, appendix E).

How this project reads the places where COGNATE is ambiguous about configurations.

How a configuration walks a matrix, in terms that say nothing of the machine.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

__all__ = [
    "ENCODED_WIDTH", "I1", "I2", "J1", "J2", "K1", "K2", "K3", "LOOPS", "Code", "Config", "Readings", "Shape",
    "SharedSchedule", "Value", "Walk", "encode", "flag", "insert_after", "letters", "logarithm", "one_hot",
]

Value = int | str
Shape = tuple[int, int]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INTEGER = re.compile(r"-?[0-9]+")
_RESERVED = frozenset(",= \t\n")


@dataclass(frozen=True)
class Config:
    """Values of all parameters of one program, in the order of the space that made it.

    Args:
        space: name of the space, such as "spade".
        values: (parameter, value) pairs; text has no comma, equal sign or blank and does not read as a number.
    """

    space: str
    values: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        for name, value in self.values:
            if not _NAME.fullmatch(name):
                raise ValueError(f"parameter name {name!r} of space {self.space}: use lower case letters, digits and _")
            if isinstance(value, str) and (not value or _RESERVED & set(value) or _INTEGER.fullmatch(value)):
                rule = "use text that is no number, without , = and blanks"
                raise ValueError(f"value {value!r} of {name} does not fit a key: {rule}")
        if len(self._index) != len(self.values):
            raise ValueError(f"a parameter is given twice in {self.key!r} (space {self.space})")

    @cached_property
    def _index(self) -> dict[str, Value]:
        return dict(self.values)

    def __getitem__(self, name: str) -> Value:
        try:
            return self._index[name]
        except KeyError:
            raise KeyError(f"space {self.space} has no parameter {name!r}; it has {', '.join(self._index)}") from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.values)

    @cached_property
    def key(self) -> str:
        """The values as text: "row_panel=4,column_panel=all"; `parse` reads it back."""
        return ",".join(f"{name}={value}" for name, value in self.values)

    def __str__(self) -> str:
        return self.key

    def replace(self, **changes: Value) -> "Config":
        """Copy with some values changed; whether the space has the values is not checked here.

        Raises:
            ValueError: no such parameter.
        """
        unknown = [name for name in changes if name not in self._index]
        if unknown:
            raise ValueError(f"space {self.space} has no parameter {unknown[0]!r}; it has {', '.join(self._index)}")
        return Config(self.space, tuple((name, changes.get(name, value)) for name, value in self.values))

    @classmethod
    def parse(cls, space: str, key: str) -> "Config":
        """Read a key; digits become integers.

        Raises:
            ValueError: a part is not of the form name=value.
        """
        values = []
        for part in key.split(","):
            name, equals, text = part.partition("=")
            if not equals or not text:
                raise ValueError(f"{part!r} in configuration key {key!r} is not of the form name=value")
            values.append((name, int(text) if _INTEGER.fullmatch(text) else text))
        return cls(space, tuple(values))


@dataclass(frozen=True)
class Code:
    """How the values of one parameter become numbers.

    Args:
        parameter: which parameter is read.
        names: one name per number.
        table: (value, numbers) for every value of the parameter.
    """

    parameter: str
    names: tuple[str, ...]
    table: tuple[tuple[Value, tuple[float, ...]], ...]


def flag(parameter: str, values: Sequence[Value] = (0, 1)) -> Code:
    """Write the first value as 0 and the second as 1."""
    return Code(parameter, (parameter,), tuple((value, (float(place),)) for place, value in enumerate(values)))


def logarithm(parameter: str, values: Sequence[Value], scale: float) -> Code:
    """Write integers as log2(value) / scale; with text among the values, a second number marks the text."""
    if all(isinstance(value, int) for value in values):
        return Code(parameter, (parameter,), tuple((value, (math.log2(value) / scale,)) for value in values))
    table = ((value, (math.log2(value) / scale, 0.0) if isinstance(value, int) else (0.0, 1.0)) for value in values)
    return Code(parameter, (parameter, f"{parameter}_text"), tuple(table))


def one_hot(parameter: str, values: Sequence[Value]) -> Code:
    """Write a value as a 1 in its place."""
    table = ((value, tuple(float(value == other) for other in values)) for value in values)
    return Code(parameter, tuple(f"{parameter}_{value}" for value in values), tuple(table))


def letters(parameter: str, values: Sequence[str], positions: Sequence[str], one: str) -> Code:
    """Write a word as one number per letter: 1 where the letter is `one`."""
    table = ((value, tuple(float(letter == one) for letter in value)) for value in values)
    return Code(parameter, tuple(f"{parameter}_{position}" for position in positions), tuple(table))


I1, I2, J1, J2, K1, K2, K3 = range(1, 8)
"""Loop numbers of appendix E: 2 is the outer part of a split loop, 1 the inner part; k3 is a third level of k."""

LOOPS = ("i1", "i2", "j1", "j2", "k1", "k2", "k3")
ENCODED_WIDTH = len(LOOPS) ** 2 + 4


@dataclass(frozen=True)
class SharedSchedule:
    """Extents of the inner loops and the order of all seven.

    Args:
        I: extent of i1, sparse rows per tile.
        J: extent of j1, sparse columns per tile.
        K: extent of k1, dense columns per tile.
        K_inner: extent of k3; 1 where a platform splits k only once (CPU, SPADE).
        order: the seven loop numbers, outermost first.
    """

    I: int  # noqa: E741 (the paper's letter)
    J: int
    K: int
    K_inner: int
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("I", "J", "K", "K_inner"):
            if getattr(self, name) < 1:
                raise ValueError(f"extent {name} = {getattr(self, name)} of a shared schedule is below 1")
        if sorted(self.order) != list(range(1, len(LOOPS) + 1)):
            raise ValueError(f"order {self.order} is not a permutation of the loop numbers 1..{len(LOOPS)}")


def insert_after(order: Sequence[int], anchor: int, loop: int) -> tuple[int, ...]:
    """Put a loop of extent 1 right inside another: the map pi of COGNATE §3.2."""
    place = list(order).index(anchor) + 1
    return (*order[:place], loop, *order[place:])


def encode(shared: SharedSchedule, numbers: Literal["log2", "raw"] = "log2") -> np.ndarray:
    """Write a schedule as the 53 numbers that the model reads.

    Returns:
        float32 (53,): the 7 x 7 permutation, one row per loop number and one column per position, then I, J, K and
        K_inner as log2(x) / 16 or as they are.

    Source: COGNATE table 6 (width 53). Appendix E prints the order and three extents, 52 numbers; the fourth extent is
    that of k3, which differs from 1 on GPUs only.
    """
    permutation = np.zeros((len(LOOPS), len(LOOPS)), np.float32)
    permutation[np.asarray(shared.order) - 1, np.arange(len(LOOPS))] = 1
    extents = np.array([shared.I, shared.J, shared.K, shared.K_inner], np.float32)
    if numbers == "log2":
        extents = np.log2(extents) / 16
    return np.concatenate([permutation.ravel(), extents])


@dataclass(frozen=True)
class Readings:
    """Choices that change what a model sees of a configuration, never what a platform runs.

    Args:
        barrier: the SPADE barrier sets the loop order and stays among the hardware-specific flags ("both",
            appendix E), only sets the order, or is only a flag.
        panels: row panels map to I and column panels to J ("rows_to_i", appendix E), or the reverse ("literal", phi
            in §3.2).
        panel_values: panel parameters are sizes, or numbers of panels.
        split: the SPADE split is the number of dense columns per pass, or the number of passes.
        sddmm: loops of SDDMM are matched between platforms by role, k being the dense dimension, or by the paper's
            letter, where j is the dense dimension on the CPU.
        numbers: extents enter the vector as log2(x) / 16, or raw.
        cpu_latent: hardware-specific part of a CPU schedule: the level formats, or chunk and parallel loop besides.
        latent: the latent encoder reads the hardware-specific part, or the whole configuration.
    """

    barrier: Literal["both", "order", "latent"] = "both"
    panels: Literal["rows_to_i", "literal"] = "rows_to_i"
    panel_values: Literal["sizes", "counts"] = "sizes"
    split: Literal["columns", "passes"] = "columns"
    sddmm: Literal["role", "letter"] = "role"
    numbers: Literal["log2", "raw"] = "log2"
    cpu_latent: Literal["formats", "all"] = "formats"
    latent: Literal["hardware", "config"] = "hardware"

    def __post_init__(self) -> None:
        for field in fields(self):
            choices = get_args(field.type)
            given = getattr(self, field.name)
            if given not in choices:
                raise ValueError(f"reading {field.name}={given!r} is not one of {', '.join(choices)}")


class Walk(NamedTuple):
    """A tiled walk; equal to a key of `sparloom.sparse.walk_statistics`.

    Args:
        reordered: 1 if rows and columns are brought into another order first.
        row_panel: rows of a tile.
        column_panel: columns of a tile; 0 for all.
        phased: 1 if one column of tiles is finished before the next.
        slice: dense columns that are read at a time.
    """

    reordered: int
    row_panel: int
    column_panel: int
    phased: int
    slice: int
