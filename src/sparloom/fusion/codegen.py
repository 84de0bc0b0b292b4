"""Code generation: lowers a program to kernels of the loop IR.

    for i: S; for j: T
    ->  parallel for t in tiles of wavefront 0: (for i in first of t: S); (for j in second of t: T)
        parallel for t in tiles of wavefront 1: for j in second of t: T

This is legal if every j runs after the iterations i that it depends on: in wavefront 0 they are in the same tile, in
wavefront 1 all of them have run. `S` and `T` are unchanged, so each element is summed in the order of the unfused
program.

A graph builder lists, for each iteration, those that it depends on. A relation
`{[j] -> [g(j, j2)] : j in .., j2 in .., condition}` becomes

    for j: (for j2: if condition: indices[at] = g(j, j2); at = at + 1); indptr[j + 1] = at

which takes time proportional to the graph: Listing 6 without its `if`.

Source: tile fusion §3.1, Listings 3, 4 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sympy

from sparloom.fusion.dependence import Dependence
from sparloom.fusion.program import FusedProgram, Iterator, MarkedLoop, Names
from sparloom.fusion.symbolic import BoundCheck, SymbolicLoop, Symbols, fold, symbol
from sparloom.ir import (
    I32,
    I64,
    Assign,
    Binary,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Stmt,
    Store,
    walk,
)

SCHEDULE = (Param(Names.FIRST, I64, True), Param(Names.SECOND, I32, True), Param(Names.SECOND_PTR, I64, True),
            Param(Names.TILES_0, I64), Param(Names.TILES_1, I64))


def lower_fused(program: FusedProgram) -> Kernel:
    """Run both loops tile by tile; the last parameters are the arrays and tile counts of a TileSchedule."""
    body = (*program.prelude, *_wavefronts(program))
    return Kernel(f"{program.name}_fused", (*params_used(program, body), *SCHEDULE), body)


def lower_unfused(program: FusedProgram) -> Kernel:
    """Run one loop after the other, each parallel over its iterations."""
    loops = tuple(
        For(nest.iterator.name, nest.iterator.lo, nest.iterator.hi, nest.body, "parallel", step=nest.iterator.step,
            chunk=64) for nest in (program.first, program.second))
    body = (*program.prelude, *loops)
    return Kernel(f"{program.name}_unfused", params_used(program, body), body)


def _wavefronts(program: FusedProgram) -> tuple[For, For]:
    tile = Ref(Names.TILE)
    ones = _iterations(program.first, Load(Names.FIRST, tile), Load(Names.FIRST, tile + 1))
    twos = _listed(program.second)
    border, end = Ref(Names.TILES_0), Ref(Names.TILES_0) + Ref(Names.TILES_1)
    return (For(Names.TILE, 0, border, (ones, twos), "parallel", chunk=1),
            For(Names.TILE, border, end, (twos,), "parallel", chunk=1))


def lower_sizes(
    program: FusedProgram, checks: Iterable[BoundCheck], equal: Iterable[tuple[Expr, Expr]] = (),
) -> Kernel:
    """Store the iterations of both loops, extents of allocated arrays, values of checks, differences of equal pairs."""
    trips = [_trips(nest.iterator) for nest in (program.first, program.second)]
    extents = [extent for array in program.arrays if array.origin != "argument" for extent in array.extents]
    checked = [expr for check in checks for expr in check.numbers]
    differences = [a - b for a, b in equal]
    numbers = enumerate([*trips, *extents, *checked, *differences])
    stores = [Store(Names.SIZES, position, value) for position, value in numbers]
    body = (*program.prelude, *stores)
    return Kernel(f"{program.name}_sizes", (*params_used(program, body), Param(Names.SIZES, I64, True, False)), body)


def params_used(program: FusedProgram, body: Iterable[Stmt]) -> tuple[Param, ...]:
    """List the scalars and arrays of the program that `body` uses."""
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


def _listed(nest: MarkedLoop) -> For:
    """Loop over the iterations of the second loop that the schedule lists for the tile."""
    number = Cast(I64, Load(Names.SECOND, Ref(Names.AT_SECOND)))
    body = (Let(nest.iterator.name, I64, _iteration(nest.iterator, number)), *nest.body)
    lo, hi = Load(Names.SECOND_PTR, Ref(Names.TILE)), Load(Names.SECOND_PTR, Ref(Names.TILE) + 1)
    return For(Names.AT_SECOND, lo, hi, body, "shared")


def _iterations(nest: MarkedLoop, lo: Expr, hi: Expr) -> For:
    """Loop over consecutive iterations, numbered from 0."""
    iterator = nest.iterator
    if iterator.step == 1 and iterator.lo == Const(0):
        return For(iterator.name, lo, hi, nest.body, "shared")
    body = (Let(iterator.name, I64, _iteration(iterator, Ref(Names.AT_FIRST))), *nest.body)
    return For(Names.AT_FIRST, lo, hi, body, "shared")


def _iteration(iterator: Iterator, number: Expr) -> Expr:
    """Return the value of the iterator in an iteration numbered from 0."""
    scaled = number if iterator.step == 1 else number * iterator.step
    return scaled if iterator.lo == Const(0) else iterator.lo + scaled


@dataclass(frozen=True)
class GraphBuilder:
    """Two kernels for one dependence: `count` fills indptr, which gives the size of indices for `fill`.

    If `transposed`, rows are iterations of the first loop and list those of the second.
    """

    count: Kernel
    fill: Kernel
    transposed: bool


def graph_builder(program: FusedProgram, dependence: Dependence, name: str) -> GraphBuilder:
    """Generate the graph builder of a dependence; its kernels are called `name`_count and `name`_fill."""
    first, second = dependence.iterations
    row, column = (second, first) if dependence.solved == "i" else (first, second)
    solution, symbols = dependence.solution, Symbols(program)
    step = Assign(Names.EDGES, Ref(Names.EDGES) + 1)
    number = _iteration_number(symbols.ir(solution.value), column, symbols)
    edge = Store(Names.GRAPH_INDICES, Ref(Names.EDGES), Cast(I32, number))
    end = Store(Names.GRAPH_INDPTR, _iteration_number(Ref(str(row.variable)), row, symbols) + 1, Ref(Names.EDGES))

    def nest(inner: tuple[Stmt, ...], last: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        if solution.conditions:
            inner = (If(fold("and", map(symbols.ir, solution.conditions)), inner),)
        outermost, *others = solution.loops
        for loop in reversed(others):
            inner = (_for(loop, inner, symbols),)
        return (*program.prelude, Declare(Names.EDGES, I64, Const(0)), _for(outermost, (*inner, *last), symbols))

    count, fill = nest((step,), (end,)), nest((edge, step), ())
    return GraphBuilder(
        Kernel(f"{name}_count", (*params_used(program, count), Param(Names.GRAPH_INDPTR, I64, True, False)), count),
        Kernel(f"{name}_fill", (*params_used(program, fill), Param(Names.GRAPH_INDICES, I32, True, False)), fill),
        transposed=dependence.solved == "j")


def shared_pattern(program: FusedProgram, dependence: Dependence) -> str | None:
    """Return the sparse argument whose pattern is the graph, so that none has to be built, or None.

    `{[j] -> [A.i[k]] : A.p[j] <= k < A.p[j + 1]}  ->  the rows of A`.
    """
    solution = dependence.solution
    if dependence.solved != "i" or solution.conditions or len(solution.loops) != 2:
        return None
    return _owner(solution.value, solution.loops)


def listed_rows(program: FusedProgram, nest: MarkedLoop) -> str | None:
    """Return the sparse argument whose rows index a gather of the loop: A if it reads X[A.i[k], ...]; or None."""
    symbols = Symbols(program)
    for access in nest.accesses:
        subscript = symbols.expr(access.subscripts[0])
        loops = [symbols.loop(iterator) for iterator in access.loops]
        if isinstance(subscript, sympy.Indexed) and None not in loops:
            owner = _owner(subscript, loops)
            if owner is not None:
                return owner
    return None


def _owner(value: sympy.Basic, loops: Sequence[SymbolicLoop]) -> str | None:
    """Return A if `value` is A.i[k], k runs over A.p[j] .. A.p[j + 1], and j, the outermost iterator, starts at 0."""
    outer = loops[0]
    if not isinstance(value, sympy.Indexed) or outer.lo != 0 or outer.step != 1:
        return None
    owner, _, attribute = value.base.label.name.rpartition(".")
    pointers = sympy.IndexedBase(symbol(f"{owner}.p"))
    inner = next((loop for loop in loops[1:] if value.indices == (loop.variable,)), None)
    if inner is None or attribute != "i" or inner.step != 1:
        return None
    rows = inner.lo == pointers[outer.variable] and inner.hi == pointers[outer.variable + 1]
    return owner if rows else None


def _for(loop: SymbolicLoop, body: tuple[Stmt, ...], symbols: Symbols) -> For:
    return For(loop.variable.name, symbols.ir(loop.lo), symbols.ir(loop.hi), body, step=loop.step)


def _iteration_number(value: Expr, loop: SymbolicLoop, symbols: Symbols) -> Expr:
    """Number the iterations of a loop from 0."""
    shifted = value if loop.lo == 0 else value - symbols.ir(loop.lo)
    return shifted if loop.step == 1 else Binary("//", shifted, Const(loop.step))
