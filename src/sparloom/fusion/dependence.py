"""Dependences between two marked loops: Equation 1 and its duals, and what they simplify to.

    flow    the second loop reads what the first wrote
    anti    the second loop writes what the first read
    output  both write

Each says that iteration j of the second loop must run after iteration i of the first, so all three go into one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import sympy

from sparloom.fusion.conditions import facts
from sparloom.fusion.frontend import refuse
from sparloom.fusion.program import Access, Nest, Program
from sparloom.fusion.solve import Solution, solve
from sparloom.fusion.symbolic import SymbolicLoop, Symbols, symbol

__all__ = ["Dependence", "check_independent", "check_trip_counts", "dependences"]


@dataclass(frozen=True)
class Dependence:
    """Iterations that meet in one array.

    Args:
        source, sink: texts of the accesses in the first and the second loop.
        relation: before simplification, in the form of Equation 2.
        solved: "i" where `solution` gives the iteration of the first loop that an iteration of the second needs; "j"
            where it gives the iteration of the second loop that needs one of the first.
        iterations: the two marked loops.
    """

    kind: Literal["flow", "anti", "output"]
    array: str
    source: str
    sink: str
    relation: str
    solved: Literal["i", "j"]
    solution: Solution
    iterations: tuple[SymbolicLoop, SymbolicLoop]

    @property
    def simplified(self) -> str:
        """The relation after simplification."""
        first, second = self.iterations
        value = self.solution.value
        left, right = (second.variable, value) if self.solved == "i" else (value, first.variable)
        conditions = (*self.solution.guards, *self.solution.conditions)
        limits = [*map(str, self.solution.loops), *map(_condition, conditions)]
        return f"{{[{left}] -> [{right}] : {' and '.join(limits)}}}"

    @property
    def offset(self) -> int | None:
        """Constant c where iteration number j needs iteration number j + c only; None otherwise."""
        first, second = self.iterations
        if self.solved != "i" or len(self.solution.loops) != 1 or first.step != second.step:
            return None
        shift = sympy.expand((self.solution.value - first.lo) - (second.variable - second.lo))
        return int(shift) // first.step if shift.is_Integer and shift % first.step == 0 else None

    def __str__(self) -> str:
        return f"{self.kind} {self.array}: {self.source} -> {self.sink}\n    {self.relation}\n    = {self.simplified}"


def dependences(program: Program) -> tuple[Dependence, ...]:
    """Derive all dependences between the loops.

    Raises:
        Unfusable: accesses whose iterations cannot be told apart; the message names them.

    Source: tile fusion §3.2.
    """
    found = {}
    for source, sink in product(_distinct(program.first), _distinct(program.second)):
        if source.array == sink.array and (source.writes or sink.writes):
            found_one = _dependence(program, source, sink)
            if found_one is not None:
                found.setdefault((found_one.array, found_one.simplified), found_one)
    return tuple(found.values())


def check_trip_counts(program: Program) -> None:
    """Check that both loops have the same number of iterations.

    Raises:
        Unfusable: that is not known when compiling.
    """
    symbols = Symbols(program)
    loops = [symbols.loop(nest.iterator) for nest in (program.first, program.second)]
    if None not in loops:
        (first, second) = loops
        alike = first.step == second.step and sympy.expand((first.hi - first.lo) - (second.hi - second.lo)) == 0
        if alike or (first.trips is not None and first.trips == second.trips):
            return
    first, second = program.first, program.second
    raise refuse(second.place, f"different trip counts: the loop in line {first.place.line} "
                 f"is `{first.place.text}`; write the bounds of both with the same names")


def check_independent(program: Program, nest: Nest) -> None:
    """Check that no two iterations of a marked loop touch the same element, where one writes it.

    Raises:
        Unfusable: they may; the message names both accesses.

    Departure: the paper lets atomic operations resolve them.
    """
    symbols = Symbols(program)
    accesses = _distinct(nest)
    for a, b in product(accesses, accesses):
        if a.array == b.array and a.writes:
            loops = [_loops(access, program, symbols) for access in (a, b)]
            new = {loop.variable: sympy.Symbol(f"{loop.variable}'", integer=True) for loop in loops[1]}
            primed = [loop.primed(new) for loop in loops[1]]
            equations = [(left, right.xreplace(new)) for left, right in
                         zip(_subscripts(a, program, symbols), _subscripts(b, program, symbols), strict=True)]
            solution = solve(equations, primed, loops[0], extents=_extents(program, a.array, symbols))
            if solution is None or not (solution.never or solution.value == loops[0][0].variable):
                raise refuse(a.place, f"iterations of {nest.iterator.name} depend on each other: "
                             f"{_text(a, program)} is written, and {_text(b, program)} of another iteration may be the "
                             f"same element: iterations of a marked loop must be independent")


def _dependence(program: Program, source: Access, sink: Access) -> Dependence | None:
    symbols = Symbols(program)
    first, second = _loops(source, program, symbols), _loops(sink, program, symbols)
    left, right = _subscripts(sink, program, symbols), _subscripts(source, program, symbols)
    extents = _extents(program, source.array, symbols)
    forward = solve(list(zip(left, right, strict=True)), first, second, extents=extents,
                    facts=facts(program, sink, second))
    backward = solve(list(zip(right, left, strict=True)), second, first, extents=extents,
                     facts=facts(program, source, first))
    best = min((each for each in (forward, backward) if each is not None), key=lambda each: len(each.loops),
               default=None)
    if best is None or not (best.never or best.varies):
        raise refuse(sink.place, f"{_text(sink, program)} may be touched by every iteration of {source.loops[0].name}, "
                     f"which {'writes' if source.writes else 'reads'} {_text(source, program)} in line "
                     f"{source.place.line}: subscripts must tell which")
    if best.never:
        return None
    kind = "flow" if not sink.writes else "output" if source.writes else "anti"
    relation = _relation(first, second, equal=f"{_flat(left, extents)} = {_flat(right, extents)}")
    return Dependence(
        kind, program.array(source.array).label, _text(source, program), _text(sink, program), relation,
        "i" if best is forward else "j", best, (first[0], second[0]))


def _relation(first: Sequence[SymbolicLoop], second: Sequence[SymbolicLoop], *, equal: str) -> str:
    limits = [*map(str, first), *map(str, second), equal]
    return f"{{[{second[0].variable}] -> [{first[0].variable}] : {' and '.join(limits)}}}"


def _flat(subscripts: Sequence[sympy.Expr], extents: Sequence[sympy.Expr]) -> sympy.Expr:
    index = subscripts[0]
    for subscript, extent in zip(subscripts[1:], extents[1:], strict=True):
        index = index * extent + subscript
    return index


def _distinct(nest: Nest) -> list[Access]:
    """Accesses of a loop, one of each kind."""
    kept = {(each.array, each.subscripts, each.writes, each.loops, each.conditions): each
            for each in reversed(nest.accesses)}
    return list(reversed(kept.values()))


def _loops(access: Access, program: Program, symbols: Symbols) -> list[SymbolicLoop]:
    """Loops around an access, without those that are not understood where no subscript names them."""
    known: list[SymbolicLoop] = []
    unknown: set[sympy.Symbol] = set()
    for iterator in access.loops:
        loop = symbols.loop(iterator)
        bounds = () if loop is None else (loop.lo, loop.hi)
        if loop is None or any(bound.free_symbols & unknown or _changing(bound, program) for bound in bounds):
            unknown.add(symbol(iterator.name))
        else:
            known.append(loop)
    named = set().union(*(expr.free_symbols for expr in _subscripts(access, program, symbols)))
    if named & unknown or not known or known[0].variable.name != access.loops[0].name:
        raise refuse(access.place, f"the bounds of the loops around {_text(access, program)} are not understood: use "
                     "sums and products of iterators, scalars and elements of integer arrays that do not change")
    return known


def _subscripts(access: Access, program: Program, symbols: Symbols) -> list[sympy.Expr]:
    exprs = [symbols.expr(each) for each in access.subscripts]
    for expr in exprs:
        if expr is None:
            raise refuse(access.place, f"the subscripts of {_text(access, program)} depend on a variable that changes, "
                         "or on an operation that is not understood: use sums and products of iterators, scalars and "
                         "elements of integer arrays")
        label = _changing(expr, program)
        if label is not None:
            raise refuse(access.place, f"the subscripts of {_text(access, program)} are read from {label}, which the "
                         "loops write: they must be known before")
    return exprs


def _changing(expr: sympy.Expr, program: Program) -> str | None:
    """Name an array that an expression is read from and the loops write, if there is one."""
    written = {program.array(name).label for name in program.written()}
    return min({indexed.base.label.name for indexed in expr.atoms(sympy.Indexed)} & written, default=None)


def _extents(program: Program, array: str, symbols: Symbols) -> list[sympy.Expr]:
    return [symbols.expr(extent) for extent in program.array(array).extents]


def _text(access: Access, program: Program) -> str:
    symbols = Symbols(program)
    parts = [symbols.expr(each) for each in access.subscripts]
    return f"{program.array(access.array).label}[{', '.join('?' if part is None else str(part) for part in parts)}]"


def _condition(condition: sympy.Basic) -> str:
    match condition:
        case sympy.Eq(lhs=left, rhs=right):
            return f"{left} = {right}"
        case sympy.Ge(lhs=left, rhs=right):
            return f"{right} <= {left}"
    return str(condition)
