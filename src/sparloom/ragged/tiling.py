"""Extents that are the same for all iterations of a tile.

    (outer * m + inner + c) // m  ->  outer + c // m          where 0 <= inner < factor and no multiple of m is crossed
    (outer * m + inner + c) // (k m)  ->  (outer + c // m) // k                                               likewise

So a vloop whose extent is rounded to the tile no longer depends on the loop inside of the tile, and may stand outside
of it: for k in 0 .. row // 8 * 8 becomes for k in 0 .. row_outer * 8, row being row_outer * 8 + row_inner.

Source: CoRa §5.2 (simplification of extents), §7.1 (trmm).
"""

from __future__ import annotations

import math

from sparloom.ir import Binary, Const, Expr, Ref, rebuild, simplify_expr

__all__ = ["constant_limit", "without_inner"]


def without_inner(expr: Expr, inner: str, factor: int) -> Expr:
    """Simplify by the rule above, wherever it applies.

    Args:
        inner: a name for numbers from 0 to factor - 1.
    """
    expr = simplify_expr(rebuild(expr, expr=lambda part: without_inner(part, inner, factor), body=lambda body: body))
    match expr:
        case Binary("//", total, Const(multiple)):
            return _quotient(total, int(multiple), inner=inner, factor=factor) or expr
    return expr


def constant_limit(extent: Expr) -> int | None:
    """Give a constant that an extent does not exceed, if one is plain."""
    match extent:
        case Const(value):
            return int(value)
        case Binary("min", a, b):
            known = [limit for limit in (constant_limit(a), constant_limit(b)) if limit is not None]
            return min(known, default=None)
    return None


def _quotient(total: Expr, multiple: int, *, inner: str, factor: int) -> Expr | None:
    whole: list[tuple[Expr, int]] = []
    constant = places = 0
    for term in _terms(total):
        match term:
            case Const(value):
                constant += int(value)
            case Ref(name) if name == inner:
                places += 1
            case Binary("*", base, Const(value)):
                whole.append((base, int(value)))
            case _:
                return None
    step = math.gcd(multiple, *(count for _, count in whole))
    if places != 1 or constant // step != (constant + factor - 1) // step:
        return None
    result: Expr = Const(constant // step)
    for base, count in whole:
        result = base * (count // step) + result
    return simplify_expr(Binary("//", result, Const(multiple // step)))


def _terms(total: Expr) -> list[Expr]:
    match total:
        case Binary("+", a, b):
            return [*_terms(a), *_terms(b)]
    return [total]
