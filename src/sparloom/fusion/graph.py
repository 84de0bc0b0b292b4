"""Builders of the dependence graph: kernels that list, for every iteration, the iterations it depends on.

A relation `{[j] -> [g(j, j2)] : j in .., j2 in .., condition}` becomes

    for j: (for j2: if condition: indices[at] = g(j, j2); at = at + 1); indptr[j + 1] = at

which takes time in proportion to the graph: Listing 6 of the paper without its `if`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from sparloom.fusion.dependence import Dependence
from sparloom.fusion.generated import EDGES, GRAPH_INDICES, GRAPH_INDPTR
from sparloom.fusion.lower import params_used
from sparloom.fusion.program import Nest, Program
from sparloom.fusion.symbolic import SymbolicLoop, Symbols, symbol
from sparloom.ir import I32, I64, Assign, Binary, Cast, Const, Declare, Expr, For, If, Kernel, Param, Ref, Stmt, Store

__all__ = ["Builder", "builder", "listed_rows", "shared_pattern"]


@dataclass(frozen=True)
class Builder:
    """Two kernels for one dependence: the first fills indptr, which says how long indices must be for the second.

    Args:
        transposed: rows are iterations of the first loop, and the graph lists those of the second.
    """

    count: Kernel
    fill: Kernel
    transposed: bool


def builder(program: Program, dependence: Dependence, name: str) -> Builder:
    """Generate the builder of a dependence.

    `name` makes the names of its kernels.
    """
    first, second = dependence.iterations
    row, column = (second, first) if dependence.solved == "i" else (first, second)
    solution, symbols = dependence.solution, Symbols(program)
    step = Assign(EDGES, Ref(EDGES) + 1)
    edge = Store(GRAPH_INDICES, Ref(EDGES), Cast(I32, _number(symbols.ir(solution.value), column, symbols)))
    end = Store(GRAPH_INDPTR, _number(Ref(str(row.variable)), row, symbols) + 1, Ref(EDGES))

    def nest(inner: tuple[Stmt, ...], last: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        conditions = (*solution.guards, *solution.conditions)
        if conditions:
            inner = (If(_all(conditions, symbols), inner),)
        outermost, *others = solution.loops
        for loop in reversed(others):
            inner = (_for(loop, inner, symbols),)
        return (*program.prelude, Declare(EDGES, I64, Const(0)), _for(outermost, (*inner, *last), symbols))

    count, fill = nest((step,), (end,)), nest((edge, step), ())
    return Builder(
        Kernel(f"{name}_count", (*params_used(program, count), Param(GRAPH_INDPTR, I64, True, False)), count),
        Kernel(f"{name}_fill", (*params_used(program, fill), Param(GRAPH_INDICES, I32, True, False)), fill),
        transposed=dependence.solved == "j")


def shared_pattern(program: Program, dependence: Dependence) -> str | None:
    """Name the sparse argument whose pattern is the graph: then nothing is built.

    `{[j] -> [A.i[k]] : A.p[j] <= k < A.p[j + 1]}  ->  the rows of A`.
    """
    solution = dependence.solution
    if dependence.solved != "i" or solution.conditions or solution.guards or len(solution.loops) != 2:
        return None
    return _owner(solution.value, solution.loops)


def listed_rows(program: Program, nest: Nest) -> str | None:
    """Name the sparse argument by whose rows a loop gathers, if it is one: `A` where it reads X[A.i[k], ...]."""
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
    """Name A where `value` is A.i[k], k runs over A.p[j] .. A.p[j + 1], and j, the outermost, begins at 0."""
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


def _number(value: Expr, loop: SymbolicLoop, symbols: Symbols) -> Expr:
    """Count iterations of a loop from 0."""
    shifted = value if loop.lo == 0 else value - symbols.ir(loop.lo)
    return shifted if loop.step == 1 else Binary("//", shifted, Const(loop.step))


def _all(conditions: tuple[sympy.Basic, ...], symbols: Symbols) -> Expr:
    whole, *others = (symbols.ir(condition) for condition in conditions)
    for other in others:
        whole = Binary("and", whole, other)
    return whole
