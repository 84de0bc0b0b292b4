"""Integers that are known before any tensor is computed: lengths that the user gives, and what the prelude derives.

    table := Length(name, axis*, limit)        given with every batch pattern; without axes it is one number
           | Offsets(extent*, summand)         sums of `summand` along the last axis, exclusive, one entry more than it
           | Pointers(extent*, summand, count)   the same over all coordinates, which are counted: one axis
           | Largest(extent*, value)           one number: the maximum over all axes, 0 if there is no entry
           | FusedOuter(extent, inner, multiple)
           | FusedInner(extent, inner, multiple)
           | Order(extent, work)               iterations by falling work
    axis  := (dim, extent)                     extents may read the axes before

All but lengths call their axes x0, x1, ...: tables that mean the same are equal, and are built once and shared.

Source: CoRa §4, §5.1, §5.3. Departure: a table may have any number of axes, each of variable extent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from sparloom.ir import I32, I64, Expr, Ref, Type, is_name, simplify_expr, walk
from sparloom.ragged.dimensions import Axis, Dim, checked_axes, free, integer, round_up

__all__ = [
    "At", "FusedInner", "FusedOuter", "Largest", "Length", "Offsets", "Order", "Pointers", "Table", "asked_for",
]


class Table(Protocol):
    """A function of coordinates to integers, stored as an array; O(1) to read.

    Args:
        label: what a kernel calls it.
        axes: its coordinates, outermost first.
        type: of the entries.
    """

    @property
    def label(self) -> str: ...

    @property
    def axes(self) -> tuple[Axis, ...]: ...

    @property
    def type(self) -> Type: ...


@dataclass(frozen=True)
class At(Expr, tuples=("args",)):
    """An entry of a table, an i64."""

    table: Table
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Length:
    """A length function: the extents of a variable loop or dimension, one per coordinate; an uninterpreted function.

    `batches = Length("batches")` is a number, `lengths = Length("lengths", {batch: batches()})` one per batch entry,
    `widths = Length("widths", {batch: batches(), row: lengths(batch)})` one per row of each. Calling it gives an
    expression.

    Args:
        axes: what it depends on, with extents, outermost first.
        limit: what no entry exceeds; checked when a Structure is made, and used to show that accesses stay inside.

    Raises:
        ValueError: the name is unusable, or an extent reads an axis that is not before it.

    Source: CoRa §4 (length functions over named dimensions).
    """

    name: str
    axes: tuple[Axis, ...] | Mapping[Dim, Expr | int] = ()
    limit: Expr | int | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"length function {self.name!r}: take letters, digits and single _ after a first letter, "
                             "no word of C")
        object.__setattr__(self, "axes", checked_axes(f"length function {self.name}", self.axes))
        limit = None if self.limit is None else integer(self.limit)
        if limit is not None and free(limit):
            raise ValueError(f"length function {self.name}: its limit reads {min(free(limit))}: take a constant or a "
                             f"length without axes")
        object.__setattr__(self, "limit", limit)

    def __call__(self, *args: Expr | int) -> At:
        if len(args) != len(self.axes):
            names = ", ".join(dim.name for dim, _ in self.axes)
            raise ValueError(f"length function {self.name} takes {len(self.axes)} coordinates ({names}), "
                             f"got {len(args)}")
        return At(self, tuple(integer(arg) for arg in args))

    @property
    def label(self) -> str:
        return self.name

    @property
    def type(self) -> Type:
        return I32


@dataclass(frozen=True)
class Offsets:
    """Where slices begin: entry (.., x) is the sum of `summand` over (.., y), y < x.

    Source: CoRa §5.3. Departure: the summand may depend on any of the axes.
    """

    extents: tuple[Expr, ...]
    summand: Expr

    @property
    def label(self) -> str:
        return "offsets"

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        *before, last = _numbered(self.extents)
        return (*before, (last[0], simplify_expr(last[1] + 1)))

    @property
    def type(self) -> Type:
        return I64


@dataclass(frozen=True)
class Pointers:
    """Where slices begin in sparse storage: entry p is the sum of `summand` over all coordinates before the p-th.

    Args:
        extents: of the dimensions around a slice, outermost first.
        summand: extent of a slice.
        count: of coordinates along `extents`.

    Source: CoRa §5.3 (the scheme of past work).
    """

    extents: tuple[Expr, ...]
    summand: Expr
    count: Expr

    @property
    def label(self) -> str:
        return "pointers"

    @property
    def around(self) -> tuple[Axis, ...]:
        """The dimensions around."""
        return _numbered(self.extents)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return ((Ref("x0"), simplify_expr(self.count + 1)),)

    @property
    def type(self) -> Type:
        return I64


@dataclass(frozen=True)
class Largest:
    """The maximum of `value` over all coordinates."""

    extents: tuple[Expr, ...]
    value: Expr

    @property
    def label(self) -> str:
        return "largest"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return ()

    @property
    def type(self) -> Type:
        return I64


@dataclass(frozen=True)
class _Fused:
    """A map of the loop f that `for x0 in 0 .. extent: for x1 in 0 .. inner` becomes.

    Args:
        inner: over x0.
        multiple: of which the number of iterations of f is made; those added have x0 = extent.
    """

    extent: Expr
    inner: Expr
    multiple: int = 1

    @property
    def starts(self) -> Offsets:
        """First f of every x0; f = starts(x0) + x1."""
        return Offsets((self.extent,), self.inner)

    @property
    def total(self) -> Expr:
        """Iterations of f, not padded."""
        return At(self.starts, (self.extent,))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return ((Ref("x0"), round_up(self.total, self.multiple)),)

    @property
    def type(self) -> Type:
        return I32


@dataclass(frozen=True)
class FusedOuter(_Fused):
    """Entry f is the x0 of f. Source: CoRa §5.1, Figure 6."""

    @property
    def label(self) -> str:
        return "fused_outer"


@dataclass(frozen=True)
class FusedInner(_Fused):
    """Entry f is the x1 of f. Source: CoRa §5.1, Figure 6."""

    @property
    def label(self) -> str:
        return "fused_inner"


@dataclass(frozen=True)
class Order:
    """A permutation of 0 .. extent: entry 0 is the x0 of the most `work`; equal work keeps its order."""

    extent: Expr
    work: Expr

    @property
    def label(self) -> str:
        return "order"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return ((Ref("x0"), self.extent),)

    @property
    def type(self) -> Type:
        return I32


def asked_for(expr: Expr, name: str) -> Length | None:
    """Find a length function that an expression asks for a dimension."""
    for node in walk(expr):
        if isinstance(node, At) and isinstance(node.table, Length) and any(name in free(arg) for arg in node.args):
            return node.table
    return None


def _numbered(extents: tuple[Expr, ...]) -> tuple[Axis, ...]:
    return tuple((Ref(f"x{number}"), extent) for number, extent in enumerate(extents))
