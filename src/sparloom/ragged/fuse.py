"""Make one loop of two."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Ref, fresh, simplify_expr
from sparloom.ragged.accesses import check_accesses
from sparloom.ragged.dimensions import free, replaced, round_up
from sparloom.ragged.program import Loop, Nest, Program
from sparloom.ragged.reorder import check_order
from sparloom.ragged.split import replaced_loops, taken_names
from sparloom.ragged.tables import At, FusedInner, FusedOuter

__all__ = ["fuse", "fuse_neighbours"]


def fuse(program: Program, nest: str, outer: str, inner: str, *, padding: int = 1) -> Program:
    """Make one loop of a loop and the one directly inside of it.

    `for o in 0 .. n: for i in 0 .. l(o): S  ->  for f in 0 .. F: S`, F = sum of l(o), with o = outer(f) and i =
    inner(f) from tables of the prelude. Where l does not depend on o, o = f // l and i = f % l need no table. Tensors
    stored in the same order are then accessed at f alone.

    Legal when the loops are neighbours, both of the result or both of the reduction, both serial, and l depends on no
    third loop. With bulk padding F is rounded up; then both loops must run along whole dimensions of the result, no
    other extent may read them, and every tensor that reads them must store them next to each other with bulk padding to
    a multiple of `padding`.

    Args:
        padding: multiple that F is rounded up to.

    Raises:
        IllegalSchedule: names what is in the way, and the remedy.

    Source: CoRa §5.1, Figure 6; bulk padding §7.2. Departure: no padding sequence is appended to the batch; the maps
    have entries for it.
    """
    found = program.nest(nest)
    first, second = found.loop(outer), found.loop(inner)
    _check_pair(found, first, second)
    extent, size = found.expanded(second.extent), found.expanded(first.extent)
    fused = fresh(f"{outer}_{inner}", taken_names(program, nest))
    if outer not in free(extent):
        if padding != 1:
            raise IllegalSchedule(f"{nest}: loops {outer} and {inner} need no bulk padding, since {inner} does not "
                                  f"vary with {outer}: pad a loop before fusing")
        total = simplify_expr(first.extent * second.extent)
        values = (Binary("//", Ref(fused), second.extent), Binary("%", Ref(fused), second.extent))
    else:
        others = sorted((free(extent) | free(size)) - {outer})
        if others:
            raise IllegalSchedule(f"{nest}: loops {outer} and {inner} cannot be fused, since {others[0]} decides about "
                                  f"them too: fuse {others[0]} and {outer} first")
        names = {outer: Ref("x0")}
        maps = [each(size, replaced(extent, names), padding) for each in (FusedOuter, FusedInner)]
        total = round_up(maps[0].total, padding)
        values = tuple(At(each, (Ref(fused),)) for each in maps)
    loop = Loop(fused, total, reduces=first.reduces)
    changed = replaced_loops(found, (outer, inner), (loop,), defined=((outer, values[0]), (inner, values[1])))
    if padding != 1:
        _check_bulk(found, first, second)
        changed = replace(changed, bulk=(*changed.bulk, (outer, inner, padding)))
        check_accesses(changed)
    check_order(changed)
    return program.with_nest(changed)


def fuse_neighbours(program: Program, nest: str, first: int, count: int) -> tuple[Program, str]:
    """Make one loop of `count` loops, from number `first` on; gives its name, too.

    Raises:
        IllegalSchedule: as by `fuse`.
    """
    for _ in range(count - 1):
        outer, inner = (loop.name for loop in program.nest(nest).loops[first : first + 2])
        program = fuse(program, nest, outer, inner)
    return program, program.nest(nest).loops[first].name


def _check_pair(nest: Nest, first: Loop, second: Loop) -> None:
    names = [loop.name for loop in nest.loops]
    if nest.position(second.name) != nest.position(first.name) + 1:
        raise IllegalSchedule(f"{nest.name}: loop {second.name} is not directly inside of {first.name} in "
                              f"{', '.join(names)}: reorder them first")
    if first.reduces != second.reduces:
        raise IllegalSchedule(f"{nest.name}: loops {first.name} and {second.name} cannot be fused, since one is of the "
                              f"result and one of the reduction")
    for loop in (first, second):
        if loop.kind != "serial":
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} is {loop.kind}: fuse before that")
    for at, each in nest.attached:
        if at == first.name:
            raise IllegalSchedule(f"{nest.name}: loop {first.name} cannot be fused, since {each.name} is computed at "
                                  f"it: fuse before compute_at")


def _check_bulk(nest: Nest, first: Loop, second: Loop) -> None:
    if nest.attached:
        raise IllegalSchedule(f"{nest.name}: loops {first.name} and {second.name} cannot be padded in bulk, since "
                              f"{nest.attached[0][1].name} is computed in the nest: keep it apart")
    extents = {dim.name: extent for dim, extent in nest.axes}
    for loop in (first, second):
        if loop.reduces or extents.get(loop.name) != loop.extent:
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be padded in bulk: it is no whole dimension "
                                  f"of the result")
    for loop in nest.loops:
        if loop not in (first, second) and free(nest.expanded(loop.extent)) & {first.name, second.name}:
            raise IllegalSchedule(f"{nest.name}: loops {first.name} and {second.name} cannot be padded in bulk, since "
                                  f"the extent of loop {loop.name} reads them: it is not defined in the padding")
