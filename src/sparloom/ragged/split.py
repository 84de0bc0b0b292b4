"""Cut loops into tiles."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, fresh, simplify_expr
from sparloom.ragged.dimensions import free, replaced
from sparloom.ragged.program import Loop, Nest, Program
from sparloom.ragged.reorder import check_order
from sparloom.ragged.tiling import without_inner

__all__ = ["divides", "split"]


def split(program: Program, nest: str, loop: str, factor: int) -> Program:
    """Cut a constant or variable loop into tiles of `factor` iterations.

    `for i in 0 .. n: S  ->
    for i_outer in 0 .. ceil(n / factor): for i_inner in 0 .. min(factor, n - i_outer * factor): S`, with
    i = i_outer * factor + i_inner. Where factor is known to divide n, because n is a constant or padded, the inner loop
    has exactly `factor` iterations, which `unroll` needs. Extents that are the same throughout a tile no longer depend
    on i_inner.

    Always legal: the order stays; only a parallel loop with one inside that is shared stays whole. Of a parallel or
    shared loop the outer one is, of a simd or unrolled one the inner one. What was computed at the loop is computed at
    the inner one.

    Raises:
        IllegalSchedule: there is no such loop, factor is below 1, or a shared loop would lose its parallel one.

    Source: CoRa §4.1.
    """
    found = program.nest(nest)
    old = found.loop(loop)
    if not isinstance(factor, int) or factor < 1:
        raise IllegalSchedule(f"{nest}: loop {loop} cannot be cut into tiles of {factor!r}: take a positive int")
    taken = taken_names(program, nest)
    outer, inner = fresh(f"{loop}_outer", taken), fresh(f"{loop}_inner", taken)
    if divides(old.extent, factor):
        tiles = _quotient(old.extent, factor)
        extent: Expr = Const(factor)
    else:
        tiles = simplify_expr(Binary("//", old.extent + (factor - 1), Const(factor)))
        extent = Binary("min", Const(factor), simplify_expr(old.extent - Ref(outer) * factor))
    outside = old.kind in ("parallel", "shared")
    loops = (Loop(outer, tiles, old.kind if outside else "serial", old.reduces, old.chunk),
             Loop(inner, extent, "serial" if outside else old.kind, old.reduces))
    value = simplify_expr(Ref(outer) * factor + Ref(inner))
    changed = replaced_loops(found, (loop,), loops, defined=((loop, value),))
    changed = replace(changed, loops=tuple(
        each if each in loops else _same_in_tile(each, {loop: value}, inner, factor) for each in changed.loops))
    check_order(changed)
    return program.with_nest(changed)


def divides(extent: Expr, factor: int) -> bool:
    """Tell whether an extent is known to be a multiple of `factor`."""
    match extent:
        case Const(value):
            return value % factor == 0
        case Binary("*", a, b):
            return divides(a, factor) or divides(b, factor)
        case Binary("+" | "-" | "min" | "max", a, b):
            return divides(a, factor) and divides(b, factor)
    return factor == 1


def replaced_loops(nest: Nest, old: tuple[str, ...], new: tuple[Loop, ...],
                   *, defined: tuple[tuple[str, Expr], ...]) -> Nest:
    """Put loops in place of neighbouring ones, which become defined names; what is attached moves to the last."""
    start = nest.position(old[0])
    loops = (*nest.loops[:start], *new, *nest.loops[start + len(old):])
    attached = tuple((new[-1].name if at in old else at, each) for at, each in nest.attached)
    return replace(nest, loops=loops, defined=(*nest.defined, *defined), attached=attached)


def taken_names(program: Program, nest: str) -> set[str]:
    """Names that a new loop of a nest cannot have: those of tensors, of nests, and of loops in the same tree."""
    trees = [list(each.tree()) for launch in program.launches for each in launch.nests]
    near = [each for tree in trees if any(other.name == nest for other in tree) for each in tree]
    own = {name for each in near for name in each.names()}
    return {*program.tensors(), *(each.name for each in program.nests()), *own}


def _same_in_tile(loop: Loop, values: dict[str, Expr], inner: str, factor: int) -> Loop:
    """Write the extent by the outer loop alone, if that is possible."""
    extent = without_inner(replaced(loop.extent, values), inner, factor)
    return loop if inner in free(extent) or not free(loop.extent) & set(values) else replace(loop, extent=extent)


def _quotient(extent: Expr, factor: int) -> Expr:
    match extent:
        case Binary("*", a, Const(value)) if value % factor == 0:
            return simplify_expr(a * (value // factor))
    return simplify_expr(Binary("//", extent, Const(factor)))
