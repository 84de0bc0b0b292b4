"""A pair of loops to be fused, as the front end reads it and the compiler works on it.

The statements of a program are those of `sparloom.ir`, with arrays flattened row by row; its accesses say the same in
subscripts, one per dimension, for the analysis of dependences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sparloom.ir import Expr, Let, Stmt, Type

__all__ = ["Access", "Array", "Iterator", "Nest", "Place", "Program", "Scalar"]


@dataclass(frozen=True)
class Place:
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
    place: Place
    conditions: tuple[Expr | None, ...] = ()


@dataclass(frozen=True)
class Nest:
    """A loop marked by fprange: `body` is one iteration."""

    iterator: Iterator
    body: tuple[Stmt, ...]
    accesses: tuple[Access, ...]
    place: Place


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
    place: Place
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
