"""Ragged tensors: extents of their dimensions, and how they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import F32, F64, Expr, Type, is_name
from sparloom.ragged.dimensions import Axis, Dim, checked_axes, integer
from sparloom.ragged.rearrange import Change

__all__ = ["Read", "Tensor"]


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
