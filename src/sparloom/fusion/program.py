"""A pair of loops to be fused, as the front end reads it and the compiler works on it.

The statements of a program are those of `sparloom.ir`, with arrays flattened row by row; its accesses say the same in
subscripts, one per dimension, for the analysis of dependences.

Names that lowering adds to those of the user; the front end gives the user's own another form where they clash.

Refusals that name file, line and what stands there.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import Literal

from sparloom.errors import Unfusable
from sparloom.ir import Expr, Let, Stmt, Type

__all__ = [
    "AT_FIRST", "AT_SECOND", "EDGES", "FIRST", "GENERATED", "GRAPH_INDICES", "GRAPH_INDPTR", "SECOND", "SECOND_PTR",
    "SIZES", "TILE", "TILES_0", "TILES_1", "Access", "Array", "Iterator", "Nest", "Program", "Scalar",
    "SourceLocation", "location_at", "refuse",
]


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
    """A number that the compiled function takes.

    Args:
        source: where the call finds it: ("n",) is an argument, ("B", "shape", 1) an extent, ("A", "shape", 0) too.
    """

    name: str
    type: Type
    source: tuple[str | int, ...]


@dataclass(frozen=True)
class Array:
    """A data space.

    Args:
        name: as the compiled function calls it.
        label: as the user calls it, such as "A.i".
        extents: one i64 expression of scalars per dimension.
        origin: an argument, or made before the loops: filled with zeros, or empty.
        source: where the call finds an argument: ("B",), or ("A", "i").
    """

    name: str
    label: str
    type: Type
    extents: tuple[Expr, ...]
    origin: Literal["argument", "zeros", "empty"]
    source: tuple[str, ...] = ()


@dataclass(frozen=True)
class Iterator:
    """A loop over lo, lo + step, ... below hi; `step` is positive.

    Args:
        lo, hi: i64 expressions; in accesses None where they depend on a variable that changes.
    """

    name: str
    lo: Expr | None
    hi: Expr | None
    step: int = 1


@dataclass(frozen=True)
class Access:
    """One read or write in the source.

    Args:
        subscripts: one i64 expression per dimension, of iterators, scalars and elements of integer arrays; None where
            it depends on a variable that changes.
        loops: iterators of the loops around, outermost first.
        conditions: of the branches around it, outermost first: it happens where all hold. None stands for one that
            depends on a variable that changes.
    """

    array: str
    subscripts: tuple[Expr | None, ...]
    writes: bool
    loops: tuple[Iterator, ...]
    place: SourceLocation
    conditions: tuple[Expr | None, ...] = ()


@dataclass(frozen=True)
class Nest:
    """A loop marked by fprange: `body` is one iteration."""

    iterator: Iterator
    body: tuple[Stmt, ...]
    accesses: tuple[Access, ...]
    place: SourceLocation


@dataclass(frozen=True)
class Program:
    """Two loops, one after the other.

    Args:
        prelude: scalars computed before the loops.
        results: names of the arrays that the function returns; `single` when it returns one that is not in a tuple.
    """

    name: str
    scalars: tuple[Scalar, ...]
    arrays: tuple[Array, ...]
    prelude: tuple[Let, ...]
    first: Nest
    second: Nest
    results: tuple[str, ...]
    single: bool
    place: SourceLocation
    _by_name: dict[str, Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {array.name: array for array in self.arrays})

    def array(self, name: str) -> Array:
        """Look up a data space."""
        return self._by_name[name]

    def written(self) -> frozenset[str]:
        """Name the arrays that either loop writes."""
        accesses = (*self.first.accesses, *self.second.accesses)
        return frozenset(access.array for access in accesses if access.writes)


TILE, AT_FIRST, AT_SECOND = "tile", "at_1", "at_2"
FIRST, SECOND, SECOND_PTR = "schedule_first", "schedule_second", "schedule_second_ptr"
TILES_0, TILES_1 = "schedule_tiles_0", "schedule_tiles_1"
EDGES, GRAPH_INDPTR, GRAPH_INDICES = "edges", "graph_indptr", "graph_indices"
SIZES = "sizes"

GENERATED = frozenset((
    TILE, AT_FIRST, AT_SECOND, FIRST, SECOND, SECOND_PTR, TILES_0, TILES_1, EDGES, GRAPH_INDPTR, GRAPH_INDICES, SIZES))


def location_at(file: str, line: int) -> SourceLocation:
    """Find a line of source."""
    return SourceLocation(file, line, linecache.getline(file, line).strip())


def refuse(place: SourceLocation, reason: str) -> Unfusable:
    """Make the error that says why a function cannot be fused.

    Args:
        reason: the offender, the rule, and after a colon the remedy.
    """
    return Unfusable(f"{place.file}:{place.line}: {reason}\n    {place.text}")
