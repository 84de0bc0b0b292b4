"""Length functions, the tables derived from them, and ragged tensors with their storage.

    table := Length(name, axis*, limit)          given with every batch; a single number if it has no axes
           | Offsets(extent*, summand)           exclusive sums of `summand` along the last axis, one extra entry
           | Pointers(extent*, summand, count)   exclusive sums over all coordinates, numbered: one axis
           | Largest(extent*, value)             one number: maximum over all axes, 0 without entries
           | FusedOuter(extent, inner)
           | FusedInner(extent, inner)
           | Order(extent, work)                 iterations by falling work
    axis  := (dim, extent)                       extents may read earlier axes

The prelude builds all tables but lengths. Their axes are called x0, x1, ..., so that tables with the same meaning are
equal, built once and shared. A tensor may be stored in other dimensions than its own:

    change := split(dim, factor)                 i  ->  i_block = i // factor, i_within = i % factor
             | order(dim*)

Source: CoRa §4, §4.1 (tensor dimension scheduling), §5.1, §5.3. Departure: a table may have any number of axes, each of
variable extent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

from sparloom.errors import IllegalSchedule
from sparloom.ir import BF16, F32, F64, I8, I32, I64, U8, Binary, Const, Expr, Ref, Type, is_name, simplify_expr, walk
from sparloom.ragged.dimensions import (
    NAME_RULE,
    Axis,
    Dim,
    as_index,
    checked_axes,
    free_names,
    round_up,
    substitute,
)

ELEMENTS = (F32, F64, BF16, U8, I8)


class Table(Protocol):
    """Function from coordinates to integers, stored as an array and read in O(1).

    Args:
        label: its name in kernels.
        axes: its coordinates, outermost first.
        type: type of the entries.
    """

    @property
    def label(self) -> str: ...

    @property
    def axes(self) -> tuple[Axis, ...]: ...

    @property
    def type(self) -> Type: ...


@dataclass(frozen=True)
class At(Expr, tuples=("args",)):
    """Entry of a table, an i64."""

    table: Table
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Length:
    """Length function: extents of a variable loop or dimension, one per coordinate; an uninterpreted function.

    `batches = Length("batches")` is a number, `lengths = Length("lengths", {batch: batches()})` has one entry per batch
    item, `widths = Length("widths", {batch: batches(), row: lengths(batch)})` one per row of each. Calling a length
    function gives an expression.

    Args:
        axes: dimensions it depends on, with extents, outermost first.
        limit: upper bound of all entries; checked when a Structure is made, and used to prove accesses in bounds.

    Raises:
        ValueError: the name is invalid, or an extent reads a later axis.

    Source: CoRa §4 (length functions over named dimensions).
    """

    name: str
    axes: tuple[Axis, ...] | Mapping[Dim, Expr | int] = ()
    limit: Expr | int | None = None

    type: ClassVar[Type] = I32

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"length function {self.name!r} has an invalid name: {NAME_RULE}")
        object.__setattr__(self, "axes", checked_axes(f"length function {self.name}", self.axes))
        limit = None if self.limit is None else as_index(self.limit)
        if limit is not None and free_names(limit):
            raise ValueError(f"length function {self.name}: its limit reads {min(free_names(limit))}: use a constant "
                             "or a length without axes")
        object.__setattr__(self, "limit", limit)

    def __call__(self, *args: Expr | int) -> At:
        if len(args) != len(self.axes):
            names = ", ".join(dim.name for dim, _ in self.axes)
            raise ValueError(f"length function {self.name} takes {len(self.axes)} coordinates ({names}), "
                             f"got {len(args)}")
        return At(self, tuple(as_index(arg) for arg in args))

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True)
class Offsets:
    """Starts of slices: entry (.., x) is the sum of `summand` over (.., y), y < x.

    Source: CoRa §5.3. Departure: the summand may depend on any of the axes.
    """

    extents: tuple[Expr, ...]
    summand: Expr

    label: ClassVar[str] = "offsets"
    type: ClassVar[Type] = I64

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        *before, last = _numbered(self.extents)
        return (*before, (last[0], simplify_expr(last[1] + 1)))


@dataclass(frozen=True)
class Pointers:
    """Starts of slices in sparse storage: entry p is the sum of `summand` over the first p coordinates.

    Args:
        extents: extents of the dimensions around a slice, outermost first.
        summand: extent of a slice.
        count: number of coordinates along `extents`.

    Source: CoRa §5.3 (the scheme of past work).
    """

    extents: tuple[Expr, ...]
    summand: Expr
    count: Expr

    label: ClassVar[str] = "pointers"
    type: ClassVar[Type] = I64

    @property
    def around(self) -> tuple[Axis, ...]:
        """Axes of the dimensions around a slice."""
        return _numbered(self.extents)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return ((Ref("x0"), simplify_expr(self.count + 1)),)


@dataclass(frozen=True)
class Largest:
    """Maximum of `value` over all coordinates."""

    extents: tuple[Expr, ...]
    value: Expr

    label: ClassVar[str] = "largest"
    axes: ClassVar[tuple[Axis, ...]] = ()
    type: ClassVar[Type] = I64


@dataclass(frozen=True)
class _Fused:
    """Map from the fused loop f back to `for x0 in 0 .. extent: for x1 in 0 .. inner`.

    Args:
        inner: extent of the inner loop, over x0.
    """

    extent: Expr
    inner: Expr

    type: ClassVar[Type] = I32

    @property
    def starts(self) -> Offsets:
        """First f of every x0; f = starts(x0) + x1."""
        return Offsets((self.extent,), self.inner)

    @property
    def total(self) -> Expr:
        """Number of iterations of f."""
        return At(self.starts, (self.extent,))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return ((Ref("x0"), self.total),)


@dataclass(frozen=True)
class FusedOuter(_Fused):
    """Entry f is x0. Source: CoRa §5.1, Figure 6."""

    label: ClassVar[str] = "fused_outer"


@dataclass(frozen=True)
class FusedInner(_Fused):
    """Entry f is x1. Source: CoRa §5.1, Figure 6."""

    label: ClassVar[str] = "fused_inner"


@dataclass(frozen=True)
class Order:
    """Permutation of 0 .. extent by falling `work` of x0; equal work keeps its order."""

    extent: Expr
    work: Expr

    label: ClassVar[str] = "order"
    type: ClassVar[Type] = I32

    @property
    def axes(self) -> tuple[Axis, ...]:
        return ((Ref("x0"), self.extent),)


def length_indexed_by(expr: Expr, name: str) -> Length | None:
    """Find a length function that is read at an index with a given dimension."""
    for node in walk(expr):
        if isinstance(node, At) and isinstance(node.table, Length) and any(name in free_names(arg)
                                                                           for arg in node.args):
            return node.table
    return None


def _numbered(extents: tuple[Expr, ...]) -> tuple[Axis, ...]:
    return tuple((Ref(f"x{number}"), extent) for number, extent in enumerate(extents))


@dataclass(frozen=True)
class StoredDims:
    """Dimensions in which a tensor is stored.

    Args:
        axes: dimensions with extents.
        coordinates: coordinates along them, over the dimensions of the tensor.
    """

    axes: tuple[Axis, ...]
    coordinates: tuple[Expr, ...]

    def index(self, owner: str, name: str) -> int:
        """Look up the position of a dimension; raise IllegalSchedule if none has this name."""
        names = [dim.name for dim, _ in self.axes]
        if name not in names:
            raise IllegalSchedule(f"tensor {owner} stores no dimension {name}; there are: {', '.join(names)}")
        return names.index(name)

    def with_dims(self, at: int, count: int, axes: Sequence[Axis], coordinates: Sequence[Expr]) -> StoredDims:
        """Replace `count` dimensions from position `at` on."""
        return StoredDims((*self.axes[:at], *axes, *self.axes[at + count:]),
                          (*self.coordinates[:at], *coordinates, *self.coordinates[at + count:]))

    def substitute(self, values: dict[str, Expr]) -> StoredDims:
        """Substitute names in all extents."""
        axes = tuple((dim, simplify_expr(substitute(extent, values))) for dim, extent in self.axes)
        return StoredDims(axes, self.coordinates)


@dataclass(frozen=True)
class SplitDim:
    """Split a stored dimension into blocks of `factor`; slices are rounded up to whole blocks."""

    name: str
    factor: int

    def applied(self, owner: str, stored: StoredDims) -> StoredDims:
        """Return the dimensions after the change."""
        at = stored.index(owner, self.name)
        extent, position, factor = stored.axes[at][1], stored.coordinates[at], Const(self.factor)
        tables = [node.table.label for _, each in stored.axes for node in walk(each)
                 if isinstance(node, At) and self.name in free_names(node)]
        if tables and self.factor > 1:
            raise IllegalSchedule(f"tensor {owner}: dimension {self.name} cannot be split into blocks, since "
                                  f"{tables[0]} has no entry beyond its end: split another dimension")
        outer, inner = Ref(f"{self.name}_block"), Ref(f"{self.name}_within")
        blocks = simplify_expr(Binary("//", round_up(extent, self.factor), factor))
        axes = ((outer, blocks), (inner, factor))
        return stored.substitute({self.name: outer * self.factor + inner}).with_dims(
            at, 1, axes, (Binary("//", position, factor), Binary("%", position, factor)))


@dataclass(frozen=True)
class OrderedDims:
    """Store dimensions in another order; those not named keep their positions."""

    names: tuple[str, ...]

    def applied(self, owner: str, stored: StoredDims) -> StoredDims:
        """Return the dimensions after the change."""
        here = [stored.index(owner, name) for name in self.names]
        if len(set(here)) < len(here):
            raise IllegalSchedule(f"tensor {owner}: order {', '.join(self.names)} names a dimension twice")
        axes, coordinates = list(stored.axes), list(stored.coordinates)
        for to, at in zip(sorted(here), here, strict=True):
            axes[to], coordinates[to] = stored.axes[at], stored.coordinates[at]
        for number, (dim, extent) in enumerate(axes):
            late = sorted(free_names(extent) & {other.name for other, _ in axes[number:]})
            if late:
                raise IllegalSchedule(f"tensor {owner}: dimension {dim.name} cannot be stored outside {late[0]}, on "
                                      f"which its extent depends: keep {late[0]} outside")
        return StoredDims(tuple(axes), tuple(coordinates))


Change = SplitDim | OrderedDims


@dataclass(frozen=True)
class Read(Expr, tuples=("indices",)):
    """Element of a tensor."""

    tensor: Tensor
    indices: tuple[Expr, ...]


@dataclass(frozen=True)
class Tensor:
    """Dense or ragged tensor, stored without gaps, last dimension innermost.

    `Tensor("scores", {batch: batches(), row: lengths(batch), head: 8, col: lengths(batch)})` has two constant
    dimensions and two vdims; `scores[batch, row, head, col]` is an expression.

    Args:
        axes: dimensions with extents, which may read earlier dimensions.
        type: f32, f64, bf16, u8 or i8.
        padding: storage padding: slices of a dimension are rounded up to this multiple.
        full: dimensions whose slices all get the size of the largest (dense storage).
        changes: how stored dimensions are made from `axes`, in order of application.
        local: storage of one loop iteration, if it has its own: varying dimensions, each with its first coordinate and
            extent, over names defined around it.

    Raises:
        ValueError: an extent reads a later dimension, or name or type are invalid.
        IllegalSchedule: padding of an unknown dimension, or a multiple below 1.

    Source: CoRa §3, §4. Departure: in the prototype a vdim depends on one dimension only, and the user gives the sizes
    of allocations; here they are derived.
    """

    name: str
    axes: tuple[Axis, ...] | Mapping[Dim, Expr | int]
    type: Type = F32
    padding: tuple[tuple[Dim, int], ...] | Mapping[Dim, int] = ()
    full: tuple[Dim, ...] = ()
    changes: tuple[Change, ...] = ()
    local: tuple[tuple[Dim, Expr, Expr], ...] | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"tensor {self.name!r} has an invalid name: {NAME_RULE}")
        if self.type not in ELEMENTS:
            raise ValueError(f"tensor {self.name} of {self.type}: elements are {', '.join(map(str, ELEMENTS))}")
        object.__setattr__(self, "axes", checked_axes(f"tensor {self.name}", self.axes))
        object.__setattr__(self, "padding", self._multiples(self.padding))
        self._multiples((dim, 1) for dim in self.full)
        object.__setattr__(self, "full", tuple(dim for dim, _ in self.axes if dim in self.full))

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Read:
        indices = indices if isinstance(indices, tuple) else (indices,)
        if len(indices) != len(self.axes):
            names = ", ".join(dim.name for dim, _ in self.axes)
            raise ValueError(f"tensor {self.name} has {len(self.axes)} dimensions ({names}), indexed with "
                             f"{len(indices)}")
        return Read(self, tuple(as_index(index) for index in indices))

    def stored(self, *, padding: Mapping[Dim, int] | None = None, full: Iterable[Dim] = ()) -> Tensor:
        """Change the storage; dimensions not named keep what they have."""
        return replace(self, padding={**dict(self.padding), **(padding or {})}, full=(*self.full, *full))

    def _multiples(self, padding: Iterable[tuple[Dim, int]] | Mapping[Dim, int]) -> tuple[tuple[Dim, int], ...]:
        """Check padding and sort it by dimension; multiples of 1 are dropped."""
        multiples = dict(padding.items() if isinstance(padding, Mapping) else padding)
        names = [dim for dim, _ in self.axes]
        for dim, multiple in multiples.items():
            if dim not in names:
                there = ", ".join(each.name for each in names)
                raise IllegalSchedule(f"tensor {self.name} has no dimension {dim.name} to pad; there are: {there}")
            if not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 1:
                raise IllegalSchedule(f"tensor {self.name}: padding of {dim.name} to multiples of {multiple!r}: use "
                                      "a positive int")
        return tuple((dim, multiples[dim]) for dim in names if multiples.get(dim, 1) > 1)
