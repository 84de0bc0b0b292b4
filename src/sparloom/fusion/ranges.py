"""Least and greatest values of symbolic expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from sparloom.fusion.symbolic import SymbolicLoop

__all__ = ["Elements", "at_least", "extremes"]

Elements = Mapping[str, tuple[sympy.Expr, sympy.Expr]]
"""Label of an integer array -> least and greatest of its elements."""


def extremes(
    expr: sympy.Expr, loops: Sequence[SymbolicLoop], elements: Elements | None = None,
) -> tuple[sympy.Expr | None, sympy.Expr | None]:
    """Find the least and greatest value of an affine expression over loops with at least one iteration.

    Args:
        loops: outermost first; bounds of inner ones may name outer ones.

    Returns:
        None where it is not known.
    """
    ends = []
    for least in (True, False):
        end = _of_elements(expr, elements or {}, least=least)
        for loop in reversed(loops):
            end = _replace(end, loop.variable, (loop.lo, loop.hi - 1), least=least)
            end = _of_elements(end, elements or {}, least=least)
        ends.append(end)
    return ends[0], ends[1]


def at_least(a: sympy.Expr | None, b: sympy.Expr | None) -> bool:
    """Tell whether surely a >= b."""
    if a is None or b is None:
        return False
    difference = sympy.expand(a - b)
    return bool(difference.is_Integer and difference >= 0)


def _of_elements(expr: sympy.Expr | None, elements: Elements, *, least: bool) -> sympy.Expr | None:
    """Put the extremes of arrays in place of their elements."""
    for atom in () if expr is None else expr.atoms(sympy.Indexed):
        if atom.base.label.name in elements:
            expr = _replace(expr, atom, elements[atom.base.label.name], least=least)
    return expr


def _replace(
    expr: sympy.Expr | None, atom: sympy.Basic, ends: tuple[sympy.Expr, sympy.Expr], *, least: bool,
) -> sympy.Expr | None:
    """Put an extreme of an atom in its place; None if the expression is not affine in it."""
    if expr is None or not expr.has(atom):
        return expr
    factor = expr.coeff(atom)
    rest = sympy.expand(expr - factor * atom)
    if not factor.is_Integer or rest.has(atom):
        return None
    return sympy.expand(rest + factor * ends[0 if (factor > 0) == least else 1])
