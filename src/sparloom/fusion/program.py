"""A function with two loops to fuse: the data that the front end produces and the compiler works on.

The statements of a program are those of `sparloom.ir`, with arrays flattened in row-major order. Its accesses describe
the same reads and writes by subscripts, one per dimension, for dependence analysis. Its arguments are numbers, arrays
and `Csr`.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from sparloom.errors import Unfusable
from sparloom.ir import Expr, Let, Stmt, Type


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's source."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Scalar:
    """A scalar parameter; `source` is the path to its value: ("n",) an argument, ("B", "shape", 1) an extent of one."""

    name: str
    type: Type
    source: tuple[str | int, ...]


@dataclass(frozen=True)
class Array:
    """An array: `name` in the compiled function.

    Args:
        label: name in the user's function, such as "A.i".
        extents: one i64 expression of scalars per dimension.
        origin: an argument, or allocated before the loops by np.zeros or np.empty.
        source: path to an argument: ("B",) or ("A", "i").
    """

    name: str
    label: str
    type: Type
    extents: tuple[Expr, ...]
    origin: Literal["argument", "zeros", "empty"]
    source: tuple[str, ...] = ()


@dataclass(frozen=True)
class Iterator:
    """The iterator of a loop over lo, lo + step, ... below hi, with a positive `step`.

    The bounds are i64 expressions; in accesses, None if they depend on a mutable variable.
    """

    name: str
    lo: Expr | None
    hi: Expr | None
    step: int = 1


@dataclass(frozen=True)
class Access:
    """One read or write in the source.

    Args:
        subscripts: one i64 expression per dimension, of iterators, scalars and elements of integer arrays; None if it
            depends on a mutable variable.
        loops: iterators of the enclosing loops, outermost first.
    """

    array: str
    subscripts: tuple[Expr | None, ...]
    writes: bool
    loops: tuple[Iterator, ...]
    location: SourceLocation


@dataclass(frozen=True)
class MarkedLoop:
    """A loop marked by fprange; `body` is one iteration."""

    iterator: Iterator
    body: tuple[Stmt, ...]
    accesses: tuple[Access, ...]
    location: SourceLocation


@dataclass(frozen=True)
class FusedProgram:
    """Two loops, one after the other, behind a prelude that computes scalars.

    Args:
        results: names of the arrays that the function returns.
        single: it returns one array rather than a tuple.
    """

    name: str
    scalars: tuple[Scalar, ...]
    arrays: tuple[Array, ...]
    prelude: tuple[Let, ...]
    first: MarkedLoop
    second: MarkedLoop
    results: tuple[str, ...]
    single: bool
    location: SourceLocation
    _by_name: dict[str, Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {array.name: array for array in self.arrays})

    def array(self, name: str) -> Array:
        """Look up an array by name."""
        return self._by_name[name]

    def written(self) -> frozenset[str]:
        """Return the names of the arrays that either loop writes."""
        accesses = (*self.first.accesses, *self.second.accesses)
        return frozenset(access.array for access in accesses if access.writes)


def fprange(*bounds: int) -> range:
    """Mark an outermost loop with independent iterations for fusion; in plain Python it is `range`.

    Source: tile fusion §3.1, Listing 1.
    """
    return range(*bounds)


class Names:
    """Names that code generation adds; the front end renames variables of the user that clash."""

    TILE, AT_FIRST, AT_SECOND = "tile", "at_1", "at_2"
    FIRST, SECOND, SECOND_PTR = "schedule_first", "schedule_second", "schedule_second_ptr"
    TILES_0, TILES_1 = "schedule_tiles_0", "schedule_tiles_1"
    EDGES, GRAPH_INDPTR, GRAPH_INDICES = "edges", "graph_indptr", "graph_indices"
    SIZES = "sizes"


GENERATED = frozenset(value for name, value in vars(Names).items() if name.isupper())


def location_at(file: str, line: int) -> SourceLocation:
    """Look up a line of source."""
    return SourceLocation(file, line, linecache.getline(file, line).strip())


def refuse(location: SourceLocation, reason: str) -> Unfusable:
    """Make the error that tells why a function cannot be fused: what is at fault, and after a colon the remedy."""
    return Unfusable(f"{location.file}:{location.line}: {reason}\n    {location.text}")


class Csr(NamedTuple):
    """A sparse matrix with the attributes of Listing 1: row r holds the nonzeros p[r] to p[r + 1] of i (columns) and x.

    The index arrays p and i are int32 or int64, the values x float32 or float64.
    """

    p: np.ndarray
    i: np.ndarray
    x: np.ndarray
    shape: tuple[int, int]


def identity_key(arguments: Mapping[str, Any]) -> tuple[list[np.ndarray], tuple[Any, ...]]:
    """Return the key of a call for an `IdentityCache`: its index arrays; shapes, types and scalars of all arguments."""
    parts = [part for value in arguments.values() for part in (value[:2] if isinstance(value, Csr) else (value,))]
    arrays = [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    return arrays, tuple(_description(value) for value in arguments.values())


def _description(value: Any) -> Any:
    """Return the part of the key for one argument: its shape and type, or its value if it is a scalar."""
    if isinstance(value, Csr):
        return value.shape, str(value.x.dtype)
    return (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else value
