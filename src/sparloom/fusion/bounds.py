"""Subscripts that a call must check, because the program alone does not say that they stay inside.

What the inspector must know of a program: which rows iterations read, and how many bytes they move (Equation 4).

Every distinct access counts once, by what its subscripts name:

    the marked iterator itself                  a row per iteration:       B[i, k], A.p[i]
    an element of an index array                a row per distinct index:  D1[A.i[e], k]
    an iterator whose bounds are indices        an element per index:      A.x[e], A.i[e]
    none of these                               nothing: it stays in cache

A row is all that follows the first subscript. The second loop does not bring again the rows that the first wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import prod
from typing import Literal

import numpy as np
import sympy

from sparloom.fusion.program import Access, Nest, Program, SourceLocation
from sparloom.fusion.symbolic import Elements, SymbolicLoop, Symbols, at_least, extremes, facts, index_elements
from sparloom.ir import DTYPES, Binary, Expr, Load, Ref, walk

__all__ = ["BoundCheck", "Traffic", "bound_checks", "traffic"]


@dataclass(frozen=True)
class BoundCheck:
    """least >= 0 and greatest < extent must hold if the marked loop `nest` (0 or 1) has iterations, and possible >= 0.

    Args:
        possible: negative where the conditions around the access surely never hold; None where that is not known.
        guarded: there are such conditions.
    """

    label: str
    axis: int
    nest: int
    least: Expr
    greatest: Expr
    extent: Expr
    possible: Expr | None
    guarded: bool
    place: SourceLocation

    @property
    def numbers(self) -> tuple[Expr, ...]:
        """What `check` takes when called."""
        limits = (self.least, self.greatest, self.extent)
        return limits if self.possible is None else (*limits, self.possible)

    def check(self, iterations: int, least: int, greatest: int, extent: int, possible: int = 0) -> None:
        """Check one call.

        Args:
            iterations: of the marked loop.

        Raises:
            ValueError: the subscript may leave its array.
        """
        if not iterations or possible < 0 or least > greatest or 0 <= least <= greatest < extent:
            return
        remedy = ": let the `if` around it compare it with its limits" if self.guarded else ""
        raise ValueError(f"{self.place}: subscript {self.axis} of {self.label} runs from {least} to {greatest}, but "
                         f"its extent is {extent}{remedy}")


def bound_checks(program: Program) -> tuple[BoundCheck, ...]:
    """List the subscripts whose extremes are known when the arguments are.

    Columns of sparse arguments lie within them and their row pointers within the nonzeros: that is checked when a
    schedule is made. Under an `if` a subscript is taken to reach all that comparisons of integers in the condition
    leave. Not checked: elements of other index arrays, products of iterators, variables that change.
    """
    elements = index_elements(program)
    found: dict[tuple[object, ...], BoundCheck] = {}
    for number, nest in enumerate((program.first, program.second)):
        for access in nest.accesses:
            for check in _checks(program, access, elements, number):
                found.setdefault((check.label, check.axis, check.numbers), check)
    return tuple(found.values())


def _checks(program: Program, access: Access, elements: Elements, number: int) -> list[BoundCheck]:
    symbols = Symbols(program)
    loops = [symbols.loop(iterator) for iterator in access.loops]
    if None in loops:
        return []
    array, checks, known = program.array(access.array), [], facts(program, access, loops)
    greatest_facts = _without_elements(extremes(fact, loops, elements)[1] for fact in known)
    possible = _most("min", map(symbols.ir, greatest_facts)) if greatest_facts else None
    for axis, (subscript, extent) in enumerate(zip(access.subscripts, array.extents, strict=True)):
        value = symbols.expr(subscript)
        least, greatest = ([], []) if value is None else _ends(value, known, loops, elements)
        size = symbols.expr(extent)
        above = any(at_least(end, sympy.Integer(0)) for end in least)
        below = any(at_least(size - 1, end) for end in greatest)
        least, greatest = _without_elements(least), _without_elements(greatest)
        if (above and below) or not least or not greatest:
            continue
        ends = (_most("max", map(symbols.ir, least)), _most("min", map(symbols.ir, greatest)))
        checks.append(BoundCheck(
            array.label, axis, number, *ends, extent, possible, bool(access.conditions), access.place))
    return checks


def _ends(
    value: sympy.Expr, known: Sequence[sympy.Expr], loops: Sequence[SymbolicLoop], elements: Elements,
) -> tuple[list[sympy.Expr | None], list[sympy.Expr | None]]:
    """Bound a subscript from below and from above, in several ways.

    For what is at least 0, f: value >= value - f, and value <= value + f.
    """
    scaled = [fact * factor for fact in known for factor in _factors(value, fact)]
    slack = [sympy.Integer(0), *scaled, *(a + b for a, b in combinations(scaled, 2))]
    return ([extremes(sympy.expand(value - each), loops, elements)[0] for each in slack],
            [extremes(sympy.expand(value + each), loops, elements)[1] for each in slack])


def _factors(value: sympy.Expr, fact: sympy.Expr) -> set[sympy.Expr]:
    """Multiples of a fact that cancel an iterator of the value."""
    ratios = {abs(value.coeff(name) / fact.coeff(name)) for name in fact.free_symbols if fact.coeff(name).is_Integer}
    return {sympy.Integer(1), *(ratio for ratio in ratios if ratio.is_Integer and ratio > 1)}


def _without_elements(ends: Iterable[sympy.Expr | None]) -> list[sympy.Expr]:
    """Leave out what is not known, and what names elements of arrays."""
    return [end for end in dict.fromkeys(ends) if end is not None and not end.atoms(sympy.Indexed)]


def _most(op: str, exprs: Iterable[Expr]) -> Expr:
    return reduce(lambda a, b: Binary(op, a, b), exprs)


Unit = Literal["iteration", "column", "nonzero"]


@dataclass(frozen=True)
class Traffic:
    """Bytes that a loop moves per iteration, per distinct index and per index."""

    iteration_bytes: int
    column_bytes: int
    nonzero_bytes: int


def traffic(program: Program, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Traffic, Traffic]:
    """Count what each of the loops moves.

    Args:
        shapes: of all arrays of the program.
    """
    made = {access.array for access in program.first.accesses if access.writes}
    return _traffic(program, program.first, shapes, set()), _traffic(program, program.second, shapes, made)


def _traffic(program: Program, nest: Nest, shapes: Mapping[str, tuple[int, ...]], made: set[str]) -> Traffic:
    moved: dict[tuple[str, Unit], int] = {}
    for access in nest.accesses:
        unit = _unit(access, nest)
        if unit is not None and not (unit == "iteration" and access.array in made):
            element = np.dtype(DTYPES[program.array(access.array).type.scalar]).itemsize
            row = 1 if unit == "nonzero" else prod(shapes[access.array][1:])
            moved[access.array, unit] = row * element
    total = {unit: sum(each for (_, of), each in moved.items() if of == unit) for unit in Unit.__args__}
    return Traffic(total["iteration"], total["column"], total["nonzero"])


def _unit(access: Access, nest: Nest) -> Unit | None:
    parts = [node for each in access.subscripts if each is not None for node in walk(each)]
    if any(isinstance(node, Load) for node in parts) or None in access.subscripts:
        return "column"
    names = {node.name for node in parts if isinstance(node, Ref)}
    if nest.iterator.name in names:
        return "iteration"
    listed = {loop.name for loop in access.loops if _loads(loop.lo) or _loads(loop.hi)}
    return "nonzero" if names & listed else None


def _loads(expr: Expr | None) -> bool:
    return expr is not None and any(isinstance(node, Load) for node in walk(expr))
