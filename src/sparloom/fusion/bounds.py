"""Subscripts that a call must check, because the program alone does not say that they stay inside."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from sparloom.fusion.program import Access, Place, Program
from sparloom.fusion.ranges import Elements, at_least, extremes
from sparloom.fusion.symbolic import Symbols, symbol
from sparloom.ir import Expr

__all__ = ["BoundCheck", "bound_checks"]


@dataclass(frozen=True)
class BoundCheck:
    """least >= 0 and greatest < extent must hold if the marked loop `nest` (0 or 1) has iterations."""

    label: str
    axis: int
    nest: int
    least: Expr
    greatest: Expr
    extent: Expr
    place: Place


def bound_checks(program: Program) -> tuple[BoundCheck, ...]:
    """List the subscripts whose extremes are known when the arguments are.

    Columns of sparse arguments lie within them and their row pointers within the nonzeros: that is checked when a
    schedule is made. Not checked: what stands under an `if`, elements of other index arrays, products of iterators.
    """
    elements = _elements(program)
    found: dict[tuple[object, ...], BoundCheck] = {}
    for number, nest in enumerate((program.first, program.second)):
        for access in nest.accesses:
            for check in _checks(program, access, elements, number):
                found.setdefault((check.label, check.axis, check.least, check.greatest), check)
    return tuple(found.values())


def _checks(program: Program, access: Access, elements: Elements, number: int) -> list[BoundCheck]:
    symbols = Symbols(program)
    loops = [symbols.loop(iterator) for iterator in access.loops]
    if access.guarded or None in loops:
        return []
    array, checks = program.array(access.array), []
    for axis, (subscript, extent) in enumerate(zip(access.subscripts, array.extents, strict=True)):
        value = symbols.expr(subscript)
        least, greatest = (None, None) if value is None else extremes(value, loops, elements)
        size = symbols.expr(extent)
        if least is None or greatest is None or (at_least(least, sympy.Integer(0)) and at_least(size - 1, greatest)):
            continue
        if not (least.atoms(sympy.Indexed) or greatest.atoms(sympy.Indexed)):
            checks.append(BoundCheck(array.label, axis, number, symbols.ir(least), symbols.ir(greatest), extent,
                                     access.place))
    return checks


def _elements(program: Program) -> Elements:
    """Extremes of the index arrays of sparse arguments."""
    found: dict[str, tuple[sympy.Expr, sympy.Expr]] = {}
    scalars = {scalar.source: symbol(scalar.name) for scalar in program.scalars}
    for array in program.arrays:
        owner, *attribute = array.source or ("",)
        if attribute == ["p"]:
            found[array.label] = (sympy.Integer(0), scalars[owner, "i", "shape", 0])
        elif attribute == ["i"]:
            found[array.label] = (sympy.Integer(0), scalars[owner, "shape", 1] - 1)
    return found
