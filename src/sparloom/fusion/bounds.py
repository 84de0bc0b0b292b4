"""Subscripts that a call must check, because the program alone does not say that they stay inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import sympy

from sparloom.fusion.conditions import facts, index_elements
from sparloom.fusion.program import Access, Place, Program
from sparloom.fusion.ranges import Elements, at_least, extremes
from sparloom.fusion.symbolic import SymbolicLoop, Symbols
from sparloom.ir import Binary, Expr

__all__ = ["BoundCheck", "bound_checks"]


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
    place: Place

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
