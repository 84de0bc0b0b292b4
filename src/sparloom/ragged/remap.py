"""Balance load: give the iterations of a loop another order."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from sparloom.errors import IllegalSchedule
from sparloom.ir import Const, Expr, Ref, fresh, simplify_expr, walk
from sparloom.ragged.dimensions import free, replaced
from sparloom.ragged.program import Nest, Program
from sparloom.ragged.split import replaced_loops, taken_names
from sparloom.ragged.tables import At, Length, Order

__all__ = ["remap"]


def remap(program: Program, nest: str, loop: str, work: Expr | None = None) -> Program:
    """Run the iterations with the most work first.

    `parallel for i in 0 .. n: S(i)  ->  parallel for i_th in 0 .. n: S(order(i_th))`, where order sorts iterations by
    falling work; the prelude builds it. Threads take iterations in turn, so the large ones are not left to the end.

    Legal when the extent of the loop depends on no other loop: iterations of the result are independent, and a
    reduction adds in another order. Remap before splitting, or split first and remap the outer loop; loops of a product
    of tiles stay.

    Args:
        work: of iteration i, over `i` alone, any unit; by default how often the loops inside of it run, as far as `i`
            decides.

    Raises:
        IllegalSchedule: the extent, or the work given, depends on another loop, or is not defined in bulk padding; the
            loop is dense.

    Source: CoRa §4.1 (thread remapping), §7.1. Departure: the order is by work and the same for any number of threads.
    """
    found = program.nest(nest)
    old = found.loop(loop)
    if old.kind == "dense":
        raise IllegalSchedule(f"{nest}: loop {loop} cannot be remapped, since it is one of a product of tiles, whose "
                              f"elements lie evenly spaced: remap a loop outside of it")
    extent = found.expanded(old.extent)
    measure = _trips(found, loop) if work is None else found.expanded(work)
    for what, expr, allowed in (("extent", extent, set()), ("work", measure, {loop})):
        others = sorted(free(expr) - allowed)
        if others:
            raise IllegalSchedule(f"{nest}: loop {loop} cannot be remapped, since its {what} depends on {others[0]}: "
                                  f"fuse the two first, or give a work of {loop} alone")
    beyond = [node for node in walk(measure) if isinstance(node, At) and isinstance(node.table, Length) and node.args]
    if beyond and found.bulk:
        raise IllegalSchedule(f"{nest}: loop {loop} cannot be remapped by {beyond[0].table.name}, which has no entry "
                              f"in bulk padding: fuse without")
    place = fresh(f"{loop}_th", taken_names(program, nest))
    order = Order(extent, simplify_expr(replaced(measure, {loop: Ref("x0")})))
    changed = replaced_loops(found, (loop,), (replace(old, name=place),),
                             defined=((loop, At(order, (Ref(place),))),))
    return program.with_nest(changed)


def _trips(nest: Nest, loop: str) -> Expr:
    """Multiply the extents of the loops inside that depend on this one alone."""
    inside = [nest.expanded(each.extent) for each in nest.loops[nest.position(loop) + 1:]]
    own = [extent for extent in inside if free(extent) == {loop}]
    return reduce(lambda total, extent: total * extent, own) if own else Const(1)
