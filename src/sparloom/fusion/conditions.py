"""What the conditions around an access say about integers."""

from __future__ import annotations

from collections.abc import Iterator as Iterates
from collections.abc import Sequence

import sympy

from sparloom.fusion.program import Access, Program
from sparloom.fusion.ranges import Elements, at_least, extremes
from sparloom.fusion.symbolic import SymbolicLoop, Symbols, symbol
from sparloom.ir import I64, Binary, Expr, Load, Unary, walk

__all__ = ["facts", "index_elements"]

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def facts(program: Program, access: Access, loops: Sequence[SymbolicLoop]) -> tuple[sympy.Expr, ...]:
    """List expressions that are at least 0 wherever an access happens, those of outer conditions first.

    Understood are comparisons of integers, `not`, `and` that holds and `or` that does not; the rest says nothing.

    Args:
        loops: those around the access that are understood; no other iterator occurs in the result.
    """
    symbols, elements, found = Symbols(program), index_elements(program), []
    unknown = {symbol(iterator.name) for iterator in access.loops} - {loop.variable for loop in loops}
    for condition in access.conditions:
        for relation in () if condition is None else _relations(condition, holds=True):
            operands = (relation.a, relation.b)
            a, b = (symbols.expr(operand) if _integral(program, operand) else None for operand in operands)
            if a is not None and b is not None:
                found += _at_least_zero(relation.op, sympy.expand(a - b), loops, elements)
    return tuple(fact for fact in found if not fact.free_symbols & unknown)


def index_elements(program: Program) -> Elements:
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


def _relations(condition: Expr, *, holds: bool) -> Iterates[Binary]:
    match condition:
        case Unary("not", inner):
            yield from _relations(inner, holds=not holds)
        case Binary(op, a, b) if op == ("and" if holds else "or"):
            yield from _relations(a, holds=holds)
            yield from _relations(b, holds=holds)
        case Binary(op, a, b) if op in _NEGATED:
            yield Binary(op if holds else _NEGATED[op], a, b)


def _integral(program: Program, expr: Expr) -> bool:
    """Whether it is made of integers that the loops do not change."""
    others = {scalar.name for scalar in program.scalars if scalar.type != I64}
    nodes = list(walk(expr))
    written = any(isinstance(node, Load) and node.buffer in program.written() for node in nodes)
    return not written and not any(getattr(node, "name", None) in others for node in nodes)


def _at_least_zero(
    op: str, difference: sympy.Expr, loops: Sequence[SymbolicLoop], elements: Elements,
) -> list[sympy.Expr]:
    """Say `difference op 0` by expressions that are at least 0."""
    match op:
        case ">":
            return [difference - 1]
        case ">=":
            return [difference]
        case "<":
            return [-difference - 1]
        case "<=":
            return [-difference]
        case "==":
            return [difference, -difference]
    least, greatest = extremes(difference, loops, elements)
    above = [difference - 1] if at_least(least, sympy.Integer(0)) else []
    return above or ([-difference - 1] if at_least(sympy.Integer(0), greatest) else [])
