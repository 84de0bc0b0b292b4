"""Tensors of which several operations define a part each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparloom.errors import IllegalSchedule
from sparloom.ir import Const, Expr
from sparloom.ragged.dimensions import Dim, integer
from sparloom.ragged.operation import Operation
from sparloom.ragged.tensor import Tensor

__all__ = ["Part", "check_parts", "part", "whole"]


@dataclass(frozen=True)
class Part:
    """Defines the elements of a tensor that have some coordinates.

    Args:
        name: of its loop nest.
    """

    name: str
    operation: Operation

    @property
    def at(self) -> tuple[tuple[Dim, Expr], ...]:
        """Dimensions with the coordinate that it has."""
        return self.operation.at


def part(name: str, tensor: Tensor, at: Mapping[Dim, int], value: Expr) -> Part:
    """Define the elements at constant coordinates: `for i: t[0, i] = f(i)` beside `for i: t[1, i] = g(i)`.

    `part("d_key", d_qkv, {which: 1}, ..)` is a nest named d_key, which has no loop over `which`. The parts of a tensor
    fix the same dimensions, and define it whole.

    Raises:
        IllegalSchedule: a dimension is unknown, of variable extent, or does not have the coordinate.
    """
    extents = dict(tensor.axes)
    for dim, coordinate in at.items():
        extent = extents.get(dim)
        if not isinstance(extent, Const) or not 0 <= coordinate < extent.value:
            there = ", ".join(f"{each.name}: {found.value}" for each, found in tensor.axes if isinstance(found, Const))
            raise IllegalSchedule(f"part {name} of {tensor.name} at {dim.name} = {coordinate}: take a coordinate of a "
                                  f"dimension of constant extent: {there or 'none'}")
    return Part(name, Operation(tensor, value, tuple((dim, integer(number)) for dim, number in at.items())))


def whole(operation: Operation) -> Part:
    """See a whole tensor as its only part."""
    return Part(operation.name, operation)


def check_parts(program: str, parts: Sequence[Part]) -> None:
    """Check that every tensor is defined once, whole.

    Raises:
        IllegalSchedule: names the tensor, and what is missing or defined twice.
    """
    names = [each.name for each in parts]
    outputs = {each.operation.name for each in parts if each.at}
    if not names or len(set(names)) < len(names) or outputs & set(names):
        raise IllegalSchedule(f"program {program} defines {', '.join(names) or 'nothing'}: define every tensor once")
    for name in outputs:
        own = [each for each in parts if each.operation.name == name]
        dims = [dim for dim, _ in own[0].at]
        extents = dict(own[0].operation.output.axes)
        wanted = set(itertools.product(*(range(extents[dim].value) for dim in dims)))
        found = [tuple(number.value for _, number in each.at) for each in own if [dim for dim, _ in each.at] == dims]
        if len(found) < len(own) or len(set(found)) < len(found) or set(found) != wanted:
            raise IllegalSchedule(f"program {program} defines {name} in parts {', '.join(each.name for each in own)}: "
                                  f"they must fix the same dimensions, and have every coordinate once")
