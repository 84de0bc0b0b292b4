"""Definitions of tensors by expression: element-wise, or with one reduction.

    operation := Operation(output tensor, value)
    value     := an expression of the loop IR over dims, with Read(tensor, index*) and at most one
                 Reduce(op, dim*, extent*, value);  op := sum | max | min

`compute("scores", {...}, sum_over({inner: 64}, query[batch, row, head, inner] * key[batch, col, head, inner]))` defines
every element of `scores`. Dimensions are i64 in values; `real` makes them numbers of the tensor's type.

Source: CoRa §4, Listing 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sparloom.errors import IllegalSchedule
from sparloom.ir import F32, Binary, Call, Cast, Const, Expr, Select, Type, rebuild, walk
from sparloom.ragged.dimensions import Axis, Dim, checked_axes, free, integer, replaced
from sparloom.ragged.tensor import Read, Tensor

__all__ = [
    "Combine",
    "Operation",
    "Reduce",
    "compute",
    "exp",
    "less",
    "max_over",
    "maximum",
    "min_over",
    "minimum",
    "real",
    "rewritten",
    "sqrt",
    "sum_over",
    "where",
]

Combine = Literal["sum", "max", "min"]


@dataclass(frozen=True)
class Reduce(Expr, tuples=("dims", "extents")):
    """The sum, maximum or minimum of a value over dimensions; 0, -inf, inf where there is none."""

    op: Combine
    dims: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    value: Expr

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(zip(self.dims, self.extents, strict=True))


@dataclass(frozen=True)
class Operation:
    """Defines every element of `output`, or those at some coordinates.

    Args:
        at: dimensions of which only one coordinate is defined, a constant.

    Raises:
        IllegalSchedule: the value reads a name that is no dimension, reads the output itself, has two reductions, or
            an index reads a tensor.
    """

    output: Tensor
    value: Expr
    at: tuple[tuple[Dim, Expr], ...] = ()

    def __post_init__(self) -> None:
        name = self.output.name
        reductions = [node for node in walk(self.value) if isinstance(node, Reduce)]
        if len(reductions) > 1:
            raise IllegalSchedule(f"{name} has {len(reductions)} reductions: compute all but one as tensors of their "
                                  "own")
        known = {dim.name for dim, _ in (*self.axes, *self.reduced)}
        unknown = sorted(free(self.value) - known)
        if unknown:
            raise IllegalSchedule(f"{name} reads {unknown[0]}, which is none of its dimensions: "
                                  f"{', '.join(sorted(known))}")
        checked_axes(f"operation {name}", (*self.axes, *self.reduced))
        for read in self.reads:
            if read.tensor.name == name:
                raise IllegalSchedule(f"{name} reads itself: give the result another name")
            if any(isinstance(node, (Read, Reduce)) for index in read.indices for node in walk(index)):
                raise IllegalSchedule(f"{name} reads {read.tensor.name} at an index that is read from a tensor: "
                                      f"indices are made of dimensions, constants and length functions")

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Read:
        return self.output[indices]

    @property
    def name(self) -> str:
        return self.output.name

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Dimensions of the result that vary."""
        fixed = {dim.name: number for dim, number in self.at}
        return tuple((dim, replaced(extent, fixed)) for dim, extent in self.output.axes if dim.name not in fixed)

    @property
    def written(self) -> Read:
        """The element that is defined, over `axes`."""
        fixed = dict(self.at)
        return self.output[tuple(fixed.get(dim, dim) for dim, _ in self.output.axes)]

    @cached_property
    def reduction(self) -> Reduce | None:
        return next((node for node in walk(self.value) if isinstance(node, Reduce)), None)

    @property
    def reduced(self) -> tuple[Axis, ...]:
        return () if self.reduction is None else self.reduction.axes

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        return tuple(node for node in walk(self.value) if isinstance(node, Read))


def compute(name: str, axes: Mapping[Dim, Expr | int], value: Expr, type: Type = F32) -> Operation:
    """Define a tensor; its storage is not padded until a schedule says so."""
    return Operation(Tensor(name, axes, type), value)


def sum_over(axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    """Add up over dimensions; inner extents may read outer dimensions."""
    return _reduce("sum", axes, value)


def max_over(axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    """Take the maximum over dimensions."""
    return _reduce("max", axes, value)


def min_over(axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    """Take the minimum over dimensions."""
    return _reduce("min", axes, value)


def real(value: Expr | float, type: Type = F32) -> Expr:
    """Make a number of an element type from a Python number, a dimension or a length."""
    return Cast(type, value) if isinstance(value, Expr) else Const(float(value), type)


def exp(value: Expr) -> Expr:
    return Call("exp", (value,))


def sqrt(value: Expr) -> Expr:
    return Call("sqrt", (value,))


def maximum(a: Expr, b: Expr) -> Expr:
    return Binary("max", a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    return Binary("min", a, b)


def less(a: Expr, b: Expr | int) -> Expr:
    """Compare dimensions or values, for `where`."""
    return Binary("<", a, b)


def where(cond: Expr, a: Expr, b: Expr) -> Expr:
    """Choose a or b; the other is not evaluated."""
    return Select(cond, a, b)


def rewritten(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Put `change(node)` in place of the outermost nodes for which it is not None."""
    found = change(expr)
    if found is not None:
        return found
    return rebuild(expr, expr=lambda inner: rewritten(inner, change), body=lambda inner: inner)


def _reduce(op: Combine, axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    if not axes:
        raise IllegalSchedule("a reduction over no dimension: name at least one, with its extent")
    return Reduce(op, tuple(axes), tuple(integer(extent) for extent in axes.values()), value)
