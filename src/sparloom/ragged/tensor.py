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

Storage in other dimensions than those of a tensor: split, fused, in another order.

    dimensions  := split(dim, factor)        i  ->  i_block = i // factor, i_within = i % factor
                 | fuse(outer, inner)        o, i  ->  o_i = o * n + i, or where i varies with o: starts(o) + i
                 | order(dim*)

Source: CoRa §4.1 (tensor dimension scheduling), §5.1.

Ragged tensors: extents of their dimensions, and how they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from sparloom.errors import IllegalSchedule
from sparloom.ir import F32, F64, I32, I64, Binary, Const, Expr, Ref, Type, is_name, simplify_expr, walk
from sparloom.ragged.dimensions import Axis, Dim, canonical, checked_axes, free, integer, replaced, round_up

__all__ = [
    "At", "Change", "FusedDims", "FusedInner", "FusedOuter", "Largest", "Length", "Offsets", "Order", "OrderedDims",
    "Pointers", "Read", "SplitDim", "Stored", "Table", "Tensor", "asked_for",
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


@dataclass(frozen=True)
class Stored:
    """Dimensions as they are stored.

    Args:
        axes: with extents.
        places: coordinates along them, over the dimensions of the tensor.
    """

    axes: tuple[Axis, ...]
    places: tuple[Expr, ...]

    def position(self, owner: str, name: str) -> int:
        """Count the dimensions outside of one.

        Raises:
            IllegalSchedule: there is none of that name.
        """
        names = [dim.name for dim, _ in self.axes]
        if name not in names:
            raise IllegalSchedule(f"tensor {owner} stores no dimension {name}; there are: {', '.join(names)}")
        return names.index(name)

    def put(self, place: int, count: int, axes: Sequence[Axis], places: Sequence[Expr]) -> Stored:
        """Put dimensions in place of others."""
        return Stored((*self.axes[:place], *axes, *self.axes[place + count:]),
                      (*self.places[:place], *places, *self.places[place + count:]))

    def asking(self, values: dict[str, Expr]) -> Stored:
        """Let extents read other names."""
        return Stored(tuple((dim, simplify_expr(replaced(extent, values))) for dim, extent in self.axes), self.places)


@dataclass(frozen=True)
class SplitDim:
    """Cut a stored dimension into blocks of `factor`; slices are rounded up to whole blocks."""

    name: str
    factor: int

    def applied(self, owner: str, stored: Stored) -> Stored:
        """Give the dimensions afterwards.

        Raises:
            IllegalSchedule: a table, such as a length function, is asked for the dimension: it has no entry in padding.
        """
        at = stored.position(owner, self.name)
        extent, place, factor = stored.axes[at][1], stored.places[at], Const(self.factor)
        asked = [node.table.label for _, each in stored.axes for node in walk(each)
                 if isinstance(node, At) and self.name in free(node)]
        if asked and self.factor > 1:
            raise IllegalSchedule(f"tensor {owner}: dimension {self.name} cannot be cut into blocks, since {asked[0]} "
                                  f"has no entry beyond its end: cut another dimension")
        outer, inner = Ref(f"{self.name}_block"), Ref(f"{self.name}_within")
        blocks = simplify_expr(Binary("//", round_up(extent, self.factor), factor))
        axes = ((outer, blocks), (inner, factor))
        return stored.asking({self.name: outer * self.factor + inner}).put(
            at, 1, axes, (Binary("//", place, factor), Binary("%", place, factor)))


@dataclass(frozen=True)
class FusedDims:
    """Make one dimension of two neighbours."""

    outer: str
    inner: str

    def applied(self, owner: str, stored: Stored) -> Stored:
        """Give the dimensions afterwards.

        Raises:
            IllegalSchedule: they are not neighbours, or an extent depends on more than the outer one.
        """
        at = stored.position(owner, self.outer)
        if stored.position(owner, self.inner) != at + 1:
            raise IllegalSchedule(f"tensor {owner}: {self.inner} is not stored directly inside {self.outer}: reorder "
                                  "dimensions first")
        (outer, count), (_, extent) = stored.axes[at : at + 2]
        o, i = stored.places[at : at + 2]
        fused = Ref(f"{self.outer}_{self.inner}")
        deep = [dim.name for dim, each in stored.axes if self.inner in free(each)]
        if deep or free(extent) - {self.outer}:
            raise IllegalSchedule(f"tensor {owner}: {self.outer} and {self.inner} cannot be fused, since the extent of "
                                  f"{deep[0] if deep else self.inner} depends on more than {self.outer}")
        if isinstance(extent, Const):
            axis: Axis = (fused, simplify_expr(count * extent.value))
            values: dict[str, Expr] = {self.outer: Binary("//", fused, extent)}
            return stored.asking(values).put(at, 2, (axis,), (o * extent.value + i,))
        if free(count):
            raise IllegalSchedule(f"tensor {owner}: {self.outer} and {self.inner} cannot be fused, since the extent of "
                                  f"{self.outer} varies, too: fuse it with what it varies with first")
        inner = replaced(extent, canonical([outer]))
        starts = Offsets((count,), inner)
        values = {self.outer: At(FusedOuter(count, inner), (fused,))}
        return stored.asking(values).put(at, 2, ((fused, At(starts, (count,))),), (At(starts, (o,)) + i,))


@dataclass(frozen=True)
class OrderedDims:
    """Store dimensions in another order; those that are not named keep their places."""

    names: tuple[str, ...]

    def applied(self, owner: str, stored: Stored) -> Stored:
        """Give the dimensions afterwards.

        Raises:
            IllegalSchedule: a dimension would stand outside of one that its extent depends on.
        """
        here = [stored.position(owner, name) for name in self.names]
        if len(set(here)) < len(here):
            raise IllegalSchedule(f"tensor {owner}: order {', '.join(self.names)} names a dimension twice")
        axes, places = list(stored.axes), list(stored.places)
        for to, at in zip(sorted(here), here, strict=True):
            axes[to], places[to] = stored.axes[at], stored.places[at]
        for number, (dim, extent) in enumerate(axes):
            late = sorted(free(extent) & {other.name for other, _ in axes[number:]})
            if late:
                raise IllegalSchedule(f"tensor {owner}: dimension {dim.name} cannot be stored outside of {late[0]}, on "
                                      f"which its extent depends: keep {late[0]} outside")
        return Stored(tuple(axes), tuple(places))


Change = SplitDim | FusedDims | OrderedDims


@dataclass(frozen=True)
class Read(Expr, tuples=("indices",)):
    """An element of a tensor."""

    tensor: Tensor
    indices: tuple[Expr, ...]


@dataclass(frozen=True)
class Tensor:
    """A dense or ragged tensor, stored densely packed, last dimension innermost.

    `Tensor("scores", {batch: batches(), row: lengths(batch), head: 8, col: lengths(batch)})` has two constant
    dimensions and two vdims; `scores[batch, row, head, col]` is an expression.

    Args:
        axes: dimensions with their extents, which may read any dimensions before.
        type: f32 or f64.
        padding: storage padding: the multiple that slices of a dimension are rounded up to.
        full: dimensions of which every slice is as large as the largest (dense storage).
        bulk: of a dimension, the multiple that the sum of its slices over the dimension before is rounded up to.
        changes: how the stored dimensions are made of these, one after the other; names are those of `rearrange`.
        local: if one iteration of a loop has storage of its own: dimensions that vary there, each with the first
            coordinate and the extent, over names that stand around.

    Raises:
        ValueError: an extent reads a dimension that is not before it, or name or type are unusable.
        IllegalSchedule: padding of an unknown dimension, or to multiples below 1.

    Source: CoRa §3, §4. Departure: the prototype allows a vdim to depend on one dimension only, and leaves sizes of
    allocations to the user; here they are derived.
    """

    name: str
    axes: tuple[Axis, ...] | Mapping[Dim, Expr | int]
    type: Type = F32
    padding: tuple[tuple[Dim, int], ...] | Mapping[Dim, int] = ()
    full: tuple[Dim, ...] = ()
    bulk: tuple[tuple[Dim, int], ...] | Mapping[Dim, int] = ()
    changes: tuple[Change, ...] = ()
    local: tuple[tuple[Dim, Expr, Expr], ...] | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"tensor {self.name!r}: take letters, digits and single _ after a first letter, no word "
                             "of C")
        if self.type not in (F32, F64):
            raise ValueError(f"tensor {self.name} of {self.type}: elements are f32 or f64")
        object.__setattr__(self, "axes", checked_axes(f"tensor {self.name}", self.axes))
        object.__setattr__(self, "padding", self._multiples(self.padding))
        object.__setattr__(self, "bulk", self._multiples(self.bulk))
        self._multiples((dim, 1) for dim in self.full)
        object.__setattr__(self, "full", tuple(dim for dim, _ in self.axes if dim in self.full))

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Read:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != len(self.axes):
            names = ", ".join(dim.name for dim, _ in self.axes)
            raise ValueError(f"tensor {self.name} has {len(self.axes)} dimensions ({names}), read with {len(given)}")
        return Read(self, tuple(integer(index) for index in given))

    def stored(self, *, padding: Mapping[Dim, int] | None = None, full: Iterable[Dim] = (),
               bulk: Mapping[Dim, int] | None = None) -> Tensor:
        """Change how it is stored; dimensions that are not named keep what they have."""
        return replace(self, padding={**dict(self.padding), **(padding or {})}, full=(*self.full, *full),
                       bulk={**dict(self.bulk), **(bulk or {})})

    def _multiples(self, given: Iterable[tuple[Dim, int]] | Mapping[Dim, int]) -> tuple[tuple[Dim, int], ...]:
        """Check padding and order it by dimension; multiples of 1 are left out."""
        multiples = dict(given.items() if isinstance(given, Mapping) else given)
        names = [dim for dim, _ in self.axes]
        for dim, multiple in multiples.items():
            if dim not in names:
                there = ", ".join(each.name for each in names)
                raise IllegalSchedule(f"tensor {self.name} has no dimension {dim.name} to pad; there are: {there}")
            if not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 1:
                raise IllegalSchedule(f"tensor {self.name}: padding of {dim.name} to multiples of {multiple!r}: take "
                                      f"a positive int")
        return tuple((dim, multiples[dim]) for dim in names if multiples.get(dim, 1) > 1)
