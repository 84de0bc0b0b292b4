"""Parameters of a configuration that all platforms share, as cost models see them.

`SharedSchedule` holds strip-mined loops and their order (COGNATE §3.2, appendix E), `Code` turns hardware-specific
parameters into numbers, `Walk` says how a configuration walks a matrix; `Readings` settles where COGNATE is ambiguous.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

import numpy as np

Value = int | float | str
"""Value of a parameter."""
Shape = tuple[int, int]
"""Rows and columns of a sparse matrix."""

# Loop numbers of appendix E: 2 is the outer part of a split loop, 1 the inner part; k3 is a third level of k.
I1 = 1
"""Inner loop over rows."""
I2 = 2
"""Outer loop over rows."""
J1 = 3
"""Inner loop over sparse columns."""
J2 = 4
"""Outer loop over sparse columns."""
K1 = 5
"""Inner loop over dense columns."""
K2 = 6
"""Outer loop over dense columns."""
K3 = 7
"""Third loop over dense columns."""

SPLIT_LOOPS = {"io": I2, "ii": I1, "jo": J2, "ji": J1, "ko": K2, "ki": K1}
"""Loops of a schedule that splits each of i, j and k once: name -> number."""

LOOPS = ("i1", "i2", "j1", "j2", "k1", "k2", "k3")
"""Names of the shared loops, in the order of their numbers."""
ORDER_WIDTH = len(LOOPS) ** 2
"""Entries of the order of an encoded schedule, which come first: a one-hot position for each loop."""
ENCODED_WIDTH = ORDER_WIDTH + 4
"""Entries of an encoded schedule: the order, then four extents."""
EXTENT_SCALE = 16
"""An extent x is encoded as log2(x) / 16, unless numbers are raw."""


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
    """Insert a loop of extent 1 directly inside another: the map pi of COGNATE §3.2."""
    position = list(order).index(anchor) + 1
    return (*order[:position], loop, *order[position:])


def encode(shared: SharedSchedule, numbers: Literal["log2", "raw"] = "log2") -> np.ndarray:
    """Encode a schedule as the 53 numbers that the model reads.

    Returns:
        float32 (53,): the 7 x 7 permutation, one row per loop number and one column per position, then I, J, K and
        K_inner as log2(x) / 16 or unchanged.

    Source: COGNATE table 6 (width 53). Appendix E prints the order and three extents, 52 numbers; the fourth extent is
    that of k3, which differs from 1 on GPUs only.
    """
    permutation = np.zeros((len(LOOPS), len(LOOPS)), np.float32)
    permutation[np.asarray(shared.order) - 1, np.arange(len(LOOPS))] = 1
    extents = np.array([shared.I, shared.J, shared.K, shared.K_inner], np.float32)
    if numbers == "log2":
        extents = np.log2(extents) / EXTENT_SCALE
    return np.concatenate([permutation.ravel(), extents])


@dataclass(frozen=True)
class Code:
    """Encoding of one hardware-specific parameter as numbers, the input of the latent encoder.

    Args:
        parameter: its name.
        names: one name per number.
        table: (value, numbers) for every value of the parameter.
    """

    parameter: str
    names: tuple[str, ...]
    table: tuple[tuple[Value, tuple[float, ...]], ...]


def flag(parameter: str, values: Sequence[Value] = (0, 1)) -> Code:
    """Encode the first value as 0 and the second as 1."""
    return Code(parameter, (parameter,), tuple((value, (float(index),)) for index, value in enumerate(values)))


def logarithm(parameter: str, values: Sequence[Value], scale: float) -> Code:
    """Encode integers as log2(value) / scale; if there is text among the values, a second number marks it."""
    if all(isinstance(value, int) for value in values):
        return Code(parameter, (parameter,), tuple((value, (math.log2(value) / scale,)) for value in values))
    table = ((value, (math.log2(value) / scale, 0.0) if isinstance(value, int) else (0.0, 1.0)) for value in values)
    return Code(parameter, (parameter, f"{parameter}_text"), tuple(table))


def one_hot(parameter: str, values: Sequence[Value]) -> Code:
    """Encode a value as a one-hot vector."""
    table = ((value, tuple(float(value == other) for other in values)) for value in values)
    return Code(parameter, tuple(f"{parameter}_{value}" for value in values), tuple(table))


def letters(parameter: str, values: Sequence[str], positions: Sequence[str], one: str) -> Code:
    """Encode a word as one number per letter: 1 where the letter is `one`."""
    table = ((value, tuple(float(letter == one) for letter in value)) for value in values)
    return Code(parameter, tuple(f"{parameter}_{position}" for position in positions), tuple(table))


class Walk(NamedTuple):
    """A tiled walk over a matrix, independent of the machine; a key of `sparloom.sparse.walk_statistics`.

    Args:
        reordered: 1 if rows and columns are reordered first.
        row_panel: rows of a tile.
        column_panel: columns of a tile; 0 for all.
        phased: 1 if one column of tiles is finished before the next.
        slice: dense columns per pass.
    """

    reordered: int
    row_panel: int
    column_panel: int
    phased: int
    slice: int


@dataclass(frozen=True)
class Readings:
    """Readings of ambiguous passages of COGNATE; they change what a model sees of a configuration, never what runs.

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
        cpu_latent: hardware-specific part of a CPU schedule: the level formats alone, or with chunk and parallel loop.
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
            value = getattr(self, field.name)
            if value not in choices:
                raise ValueError(f"reading {field.name}={value!r} is not one of {', '.join(choices)}")
