"""Where elements lie, found as formats of sparse tensors find it (CSF): by a table of pointers for every level.

    position of (x_0 .. x_k) = position of (x_0 .. x_{k-1}) * e_k + x_k                where e_k reads no dimension
                             = pointers_k[position of (x_0 .. x_{k-1})] + x_k          else
    pointers_k[p]            = sum of e_k over all positions before p

The offset is the last position: elements lie where the dimension graph puts them. But a level takes its extents for a
function of everything around it, so it has an entry for every slice, and is read at what the level before has given.
Rows that pointers lead to are not known to be evenly spaced, so their tiles cannot be left to a routine for products.

Example: scores[batch, row(batch), head, col(batch)] has offsets[batch], which all its kind share, and
pointers[(offsets[batch] + row) * 8 + head], one entry for every row of every head.

Source: CoRa §5.3, §7.4 (the scheme of past work). Departure: slices that only one dimension stands around have the
table of the dimension graph, which is the same, so what is known of fused loops holds.
"""

from __future__ import annotations

from functools import lru_cache

from sparloom.errors import IllegalSchedule
from sparloom.ir import Const, Expr, simplify_expr
from sparloom.ragged.dimensions import canonical, free, replaced
from sparloom.ragged.layout import Step, merged, offset_steps, stored
from sparloom.ragged.tables import At, Offsets, Pointers
from sparloom.ragged.tensor import Tensor

__all__ = ["pointer_steps"]


@lru_cache(maxsize=1024)
def pointer_steps(tensor: Tensor) -> tuple[Step, ...]:
    """Give the steps whose sum is the offset of an element, by pointers; see `offset_steps`, as which local tensors go.

    Raises:
        IllegalSchedule: bulk padding inside of more than one dimension: there is no position in it.
    """
    found = offset_steps(tensor)
    if tensor.local is not None:
        return found
    axes = stored(tensor).axes
    for dim, _ in tensor.bulk:
        if axes[1][0] != dim:
            raise IllegalSchedule(f"tensor {tensor.name}: bulk padding of {dim.name} inside of several dimensions has "
                                  f"no positions: pad the slices instead, or access it by offsets")
    names = canonical(dim for dim, _ in axes)
    extents = tuple(replaced(extent, names) for _, extent in axes)
    steps: tuple[Step, ...] = ()
    count: Expr = Const(1)
    for number, (dim, extent) in enumerate(axes):
        if free(extent):
            table = (Offsets(extents[:1], extents[1]) if number == 1
                     else Pointers(extents[:number], extents[number], count))
            steps, count = (Step((), At(table, (_sum(steps),))), Step((), dim)), At(table, (count,))
        else:
            steps = (*(Step(merged((*step.rest, extent)), step.position) for step in steps), Step((), dim))
            count = simplify_expr(count * extent)
    return steps


def _sum(steps: tuple[Step, ...]) -> Expr:
    total: Expr = Const(0)
    for step in steps:
        term = step.position
        for factor in step.rest:
            term = term * factor
        total = total + term
    return simplify_expr(total)
