"""Operation splitting: parts of an operation that are scheduled differently."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, fresh, pretty_expr, simplify_expr
from sparloom.ragged.dimensions import Dim, free, integer
from sparloom.ragged.program import Launch, Nest, Program
from sparloom.ragged.show import printable
from sparloom.ragged.split import replaced_loops, taken_names

__all__ = ["split_operation"]


def split_operation(program: Program, nest: str, loop: Dim, *, multiple: int | None = None,
                    point: Expr | int | None = None) -> Program:
    """Make two operations of one, by a point of one of its loops.

    `for i in 0 .. n: S(i)  ->  for i in 0 .. p: S(i); for i_rest in 0 .. n - p: S(i_rest + p)`

    They are named `<nest>_main` and `<nest>_rest` and define parts of the same tensor. With `multiple` p is the last
    multiple up to n, so that tiles of the main part are whole without padding. Where the loop is of the reduction, the
    main part stores what it has reduced, and the rest goes on from there.

    Legal when the loop runs along a whole dimension, unpadded, and nothing is computed at a loop of the nest.

    Args:
        point: the point itself, at least 0, over dimensions outside of the loop; it is cut off at n.

    Raises:
        IllegalSchedule: it is not legal, or not exactly one of multiple and point is given.

    Source: CoRa §4.1, Figure 5. Departure: the prototype does not split reductions.
    """
    found = program.nest(nest)
    old = found.loop(loop.name)
    if dict(found.axes).get(loop) != old.extent:
        raise IllegalSchedule(f"{nest}: loop {loop.name} is no longer a whole dimension: split the operation before "
                              f"other changes of it")
    if found.attached or Launch((found,)) not in program.launches:
        raise IllegalSchedule(f"{nest} cannot be split beside what is computed at its loops or at once with it: split "
                              f"it first")
    cut = _cut(found, old.extent, loop=loop, multiple=multiple, point=point)
    taken = taken_names(program, nest)
    rest_name = fresh(f"{loop.name}_rest", taken)
    shorter = replace(old, name=rest_name, extent=simplify_expr(old.extent - cut))
    main = replace(found, name=fresh(f"{nest}_main", taken), loops=tuple(
        replace(each, extent=cut) if each is old else each for each in found.loops))
    rest = replaced_loops(replace(found, name=fresh(f"{nest}_rest", taken)), (loop.name,), (shorter,),
                          defined=((loop.name, Ref(rest_name) + cut),))
    if old.reduces:
        main, rest = replace(main, ends=False), replace(rest, begins=False)
    place = program.launches.index(Launch((found,)))
    parts = (Launch((main,)), Launch((rest,)))
    return replace(program, launches=(*program.launches[:place], *parts, *program.launches[place + 1:]))


def _cut(nest: Nest, extent: Expr, *, loop: Dim, multiple: int | None, point: Expr | int | None) -> Expr:
    if (multiple is None) == (point is None):
        raise IllegalSchedule(f"{nest.name}: give either the multiple or the point at which to split {loop.name}")
    if multiple is not None:
        if multiple < 1:
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be split at multiples of {multiple}: take a "
                                  f"positive int")
        return simplify_expr(Binary("//", extent, Const(multiple)) * multiple)
    given = simplify_expr(integer(point))
    outside = {each.name for each in nest.loops[: nest.position(loop.name)]} | {name for name, _ in nest.defined}
    if free(given) - outside or (isinstance(given, Const) and given.value < 0):
        raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be split at {pretty_expr(printable(given))}: take "
                              f"a point of at least 0 over loops outside of it")
    return given if _is_floor_of(given, extent) else simplify_expr(Binary("min", given, extent))


def _is_floor_of(point: Expr, extent: Expr) -> bool:
    """Whether a point is x // m * m for an extent x, or x and a constant."""
    match point:
        case Binary("*", Binary("//", x, Const(divisor)), Const(factor)) if divisor == factor:
            return extent == x or (isinstance(extent, Binary) and extent.op == "+" and extent.a == x and isinstance(
                extent.b, Const) and extent.b.value >= 0)
    return False
