"""The product of tiles that three loops are."""

from __future__ import annotations

from collections.abc import Mapping

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Multiply, View, simplify_expr
from sparloom.ragged.dimensions import expanded, free
from sparloom.ragged.lookups import Lookups
from sparloom.ragged.polynomial import Polynomial
from sparloom.ragged.program import Loop, Nest
from sparloom.ragged.tensor import Read

__all__ = ["product"]

ZERO, ONE = Const(0), Const(1)
Strides = dict[str, Expr]


def product(nest: Nest, lookups: Lookups, meanings: Mapping[str, Expr], *, written: Read, loops: tuple[Loop, ...],
            add: Expr) -> Multiply:
    """Write the loops of rows, columns and the reduction as one statement.

    Args:
        written: the element that the nest computes.
        add: whether to add to what is stored.

    Raises:
        IllegalSchedule: the loops are no product of tiles, and why.
    """
    rows, cols, depth = (loop.name for loop in loops)
    inside = {name: expr for name, expr in meanings.items() if free(expanded(expr, meanings)) & {rows, cols, depth}}
    match nest.added:
        case Binary("*", Read() as a, Read() as b):
            pass
        case _:
            raise _refused(nest, "the reduction does not add up products of two tensors: move the rest out of it")
    padded = [dim.name for dim, _ in nest.operation.reduced if dim.name in dict(nest.padded)]
    if padded:
        raise _refused(nest, f"loop {padded[0]} of the reduction is padded: products need no padding")

    def strides(read: Read) -> tuple[Expr, Strides]:
        place = expanded(lookups.offset(read.tensor, read.indices, meanings), inside)
        found = Polynomial.of(place).joined().split((rows, cols, depth))
        if found is None:
            raise _refused(nest, f"elements of {read.tensor.name} are not evenly spaced along {rows}, {cols} and "
                                 f"{depth}: store the dimensions that these loops run along as the loops run")
        base, steps = found
        return simplify_expr(lookups.expr(base, meanings)), steps

    (a_at, left), (b_at, right), (c_at, result) = strides(a), strides(b), strides(written)
    if left[rows] == ZERO:
        a, a_at, left, b, b_at, right = b, b_at, right, a, a_at, left
    for read, steps, still in ((a, left, cols), (b, right, rows), (written, result, depth)):
        if steps[still] != ZERO:
            raise _refused(nest, f"{read.tensor.name} varies with loop {still}: it would not be a product of matrices")
    for read, steps in ((b, right), (written, result)):
        if steps[cols] != ONE:
            raise _refused(nest, f"elements of {read.tensor.name} do not lie side by side along loop {cols}: reorder "
                                 f"its dimensions")
    extents = [simplify_expr(lookups.expr(loop.extent, meanings)) for loop in loops]
    return Multiply(View(written.tensor.name, c_at, result[rows], ONE),
                    View(a.tensor.name, a_at, left[rows], left[depth]),
                    View(b.tensor.name, b_at, right[depth], ONE), extents[0], extents[1], extents[2], add)


def _refused(nest: Nest, why: str) -> IllegalSchedule:
    return IllegalSchedule(f"{nest.name} cannot be offloaded: {why}")
