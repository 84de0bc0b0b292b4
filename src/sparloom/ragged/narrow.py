"""Leave out iterations in which a reduction adds nothing."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, Select, pretty_expr, simplify_expr
from sparloom.ragged.dimensions import Dim, free, replaced
from sparloom.ragged.polynomial import normal
from sparloom.ragged.program import Nest, Program
from sparloom.ragged.reorder import check_order
from sparloom.ragged.show import printable
from sparloom.ragged.tiling import constant_limit, without_inner

__all__ = ["narrow"]


def narrow(program: Program, nest: str, loop: Dim) -> Program:
    """Make the condition under which a reduction adds anything the end of a loop.

    `for k: for i in 0 .. n: t[i] += where(i < e(k), S, 0)  ->  for k: for i in 0 .. min(n, e(k)): t[i] += S`

    So sums over a triangle run over the triangle only, and may be products of tiles.

    Legal when the nest adds up on top of what is stored (`decompose_reduction`), the loop runs along a whole dimension
    of the result, and e(k) is the same in all iterations of the loops inside of it.

    Raises:
        IllegalSchedule: names what is in the way, and the remedy.

    Source: CoRa §7.1 (trmm computes triangles by vloops); here the loop that varies is of the result.
    """
    found = program.nest(nest)
    old, reduction = found.loop(loop.name), found.operation.reduction
    match reduction.value if reduction is not None and reduction.op == "sum" else None:
        case Select(Binary("<", Ref(loop.name), end), _, Const(0)):
            pass
        case _:
            raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since what is added up is not "
                                  f"where(less({loop.name}, end), value, 0)")
    if found.begins or found.operation.value != reduction:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since the reduction begins or ends in it: "
                              f"decompose_reduction first")
    if dict(found.operation.axes).get(loop) != old.extent or found.attached:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since it is not a whole dimension of the "
                              f"result, or something is computed in the nest: narrow first")
    extent = normal(simplify_expr(Binary("min", old.extent, _end(found, end, loop.name))))
    late = sorted(free(extent) & {each.name for each in found.loops[found.position(loop.name):]})
    if late:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot end at {pretty_expr(printable(end))}, which varies "
                              f"with loop {late[0]} inside of it: move {late[0]} outside")
    loops = tuple(replace(each, extent=extent) if each is old else each for each in found.loops)
    changed = replace(found, loops=loops, narrowed=(*found.narrowed, loop.name))
    check_order(changed)
    return program.with_nest(changed)


def _end(nest: Nest, end: Expr, loop: str) -> Expr:
    """Write an end by loops outside, if it is the same throughout those inside."""
    inside = nest.loops[nest.position(loop) + 1:]
    meanings = {name: nest.expanded(Ref(name)) for name in free(end)}
    names = {each.name for each in inside}
    end = replaced(end, {name: meaning for name, meaning in meanings.items() if free(meaning) & names})
    for each in inside:
        limit = constant_limit(each.extent)
        end = end if limit is None else without_inner(end, each.name, limit)
    return end
