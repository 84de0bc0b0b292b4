"""Programs to kernels of the loop IR.

    for i: S; for j: T
    ->  parallel for t in tiles of wavefront 0: (for i in first of t: S); (for j in second of t: T)
        parallel for t in tiles of wavefront 1: for j in second of t: T

Legal when every j comes after the i that it depends on: in a tile of wavefront 0 behind those of the same tile, in
wavefront 1 behind all. `S` and `T` are unchanged, so every element is added up in the order of the unfused program.

Source: tile fusion §3.1, Listings 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparloom.fusion.bounds import BoundCheck
from sparloom.fusion.generated import (
    AT_FIRST,
    AT_SECOND,
    FIRST,
    SECOND,
    SECOND_PTR,
    SIZES,
    TILE,
    TILES_0,
    TILES_1,
)
from sparloom.fusion.program import Iterator, Nest, Program
from sparloom.ir import I32, I64, Binary, Cast, Const, Expr, For, Kernel, Let, Load, Param, Ref, Stmt, Store, walk

__all__ = ["SCHEDULE", "lower_fused", "lower_sizes", "lower_unfused", "lower_wavefronts", "params_used"]

SCHEDULE = (Param(FIRST, I64, True), Param(SECOND, I32, True), Param(SECOND_PTR, I64, True), Param(TILES_0, I64),
            Param(TILES_1, I64))



def lower_fused(program: Program) -> Kernel:
    """Run both loops tile by tile; takes the arrays of a TileSchedule and its two counts of tiles."""
    body = (*program.prelude, *_wavefronts(program))
    return Kernel(f"{program.name}_fused", (*params_used(program, body), *SCHEDULE), body)


def lower_wavefronts(program: Program) -> tuple[Kernel, Kernel]:
    """The same as two kernels, one per wavefront, for GPUs: a tile for a block of threads, a launch for a barrier."""
    first, second = (
        Kernel(f"{program.name}_wavefront_{number}", (*params_used(program, body), *SCHEDULE), body)
        for number, loop in enumerate(_wavefronts(program)) for body in [(*program.prelude, loop)])
    return first, second


def lower_unfused(program: Program) -> Kernel:
    """Run one loop after the other, each in parallel over its iterations."""
    loops = tuple(
        For(nest.iterator.name, nest.iterator.lo, nest.iterator.hi, nest.body, "parallel", step=nest.iterator.step,
            chunk=64) for nest in (program.first, program.second))
    body = (*program.prelude, *loops)
    return Kernel(f"{program.name}_unfused", params_used(program, body), body)


def _wavefronts(program: Program) -> tuple[For, For]:
    tile = Ref(TILE)
    ones = _iterations(program.first, Load(FIRST, tile), Load(FIRST, tile + 1))
    twos = _listed(program.second)
    early = For(TILE, 0, Ref(TILES_0), (ones, twos), "parallel", chunk=1)
    return early, For(TILE, Ref(TILES_0), Ref(TILES_0) + Ref(TILES_1), (twos,), "parallel", chunk=1)


def lower_sizes(
    program: Program, checks: Iterable[BoundCheck], equal: Iterable[tuple[Expr, Expr]] = (),
) -> Kernel:
    """Compute what the call must know.

    It stores iterations of both loops, the extents of the arrays that are made, the numbers of every check, and the
    difference of every pair that should be equal.
    """
    trips = [_trips(nest.iterator) for nest in (program.first, program.second)]
    extents = [extent for array in program.arrays if array.origin != "argument" for extent in array.extents]
    checked = [expr for check in checks for expr in check.numbers]
    differences = [a - b for a, b in equal]
    numbers = enumerate([*trips, *extents, *checked, *differences])
    stores = [Store(SIZES, position, value) for position, value in numbers]
    body = (*program.prelude, *stores)
    return Kernel(f"{program.name}_sizes", (*params_used(program, body), Param(SIZES, I64, True, False)), body)


def params_used(program: Program, body: Iterable[Stmt]) -> tuple[Param, ...]:
    """List the scalars and arrays of the program that `body` names."""
    nodes = [node for statement in body for node in walk(statement)]
    names = {node.name for node in nodes if isinstance(node, Ref)}
    buffers = {node.buffer for node in nodes if hasattr(node, "buffer")}
    scalars = tuple(Param(each.name, each.type) for each in program.scalars if each.name in names)
    written = program.written()
    arrays = tuple(Param(array.name, array.type, True, array.name not in written)
                   for array in program.arrays if array.name in buffers)
    return (*arrays, *scalars)


def _trips(iterator: Iterator) -> Expr:
    distance = iterator.hi - iterator.lo
    trips = distance if iterator.step == 1 else Binary("//", distance + (iterator.step - 1), Const(iterator.step))
    return Binary("max", trips, Const(0))


def _listed(nest: Nest) -> For:
    """Iterations of the second loop that the schedule lists for the tile."""
    number = Cast(I64, Load(SECOND, Ref(AT_SECOND)))
    body = (Let(nest.iterator.name, I64, _iteration(nest.iterator, number)), *nest.body)
    return For(AT_SECOND, Load(SECOND_PTR, Ref(TILE)), Load(SECOND_PTR, Ref(TILE) + 1), body, "shared")


def _iterations(nest: Nest, lo: Expr, hi: Expr) -> For:
    """Consecutive iterations, counted from 0."""
    iterator = nest.iterator
    if iterator.step == 1 and iterator.lo == Const(0):
        return For(iterator.name, lo, hi, nest.body, "shared")
    body = (Let(iterator.name, I64, _iteration(iterator, Ref(AT_FIRST))), *nest.body)
    return For(AT_FIRST, lo, hi, body, "shared")


def _iteration(iterator: Iterator, number: Expr) -> Expr:
    """Value of the iterator in an iteration counted from 0."""
    scaled = number if iterator.step == 1 else number * iterator.step
    return scaled if iterator.lo == Const(0) else iterator.lo + scaled
