"""Algebra of one expression whose parts are already folded."""

from __future__ import annotations

import operator
from collections.abc import Callable

from sparloom.ir.nodes import BOOL, I64, Binary, Cast, Const, Expr, Select, Type, Unary
from sparloom.ir.types import is_literal

__all__ = ["fold"]


def fold(expr: Expr) -> Expr:
    """Return a simpler expression of the same value and type, or `expr` itself."""
    match expr:
        case Binary(op, Const(a, type), Const(b)) if type.scalar in ("i32", "i64") and op in _INTEGER:
            if op in ("//", "%") and b == 0:
                return expr
            return _fit(_INTEGER[op](a, b), type, expr)
        case Binary(op, Const(a, type), Const(b)) if type.scalar in ("i32", "i64") and op in _COMPARE:
            return Const(_COMPARE[op](a, b), BOOL)
        case Binary("+" | "*" as op, Const(_, type) as a, b) if type.scalar in ("i32", "i64"):
            return fold(Binary(op, b, a))  # constants to the right
        case Binary("and" | "or" as op, Const(value), b):
            return b if value == (op == "and") else Const(value, BOOL)
        case Binary(op, a, Const(b, type) as right):
            return _right(op, a, right) if type.scalar in ("i32", "i64") else _float(expr, op, a, b)
        case Unary("-", Const(a, type)) if type.scalar in ("i32", "i64"):
            return _fit(-a, type, expr)
        case Unary("not", Const(a)):
            return Const(not a, BOOL)
        case Cast(type, Const(a, given)) if type == I64 and given.scalar in ("i32", "i64"):
            return Const(a, I64)
        case Select(Const(value), a, b):
            return a if value else b
    return expr


def _right(op: str, a: Expr, right: Const) -> Expr:
    """Fold an integer operation with a constant on the right."""
    b, whole = right.value, Binary(op, a, right)
    if (op in ("+", "-") and b == 0) or (op in ("*", "//") and b == 1):
        return a
    if (op == "*" and b == 0) or (op == "%" and b == 1):
        return Const(0, right.type)
    match a:
        case Binary("+" | "-" as inner, x, Const(c)) if op in ("+", "-"):
            total = (c if inner == "+" else -c) + (b if op == "+" else -b)
            if total == 0:
                return x
            merged = Binary("+" if total > 0 else "-", x, Const(abs(total), right.type))
            return merged if is_literal(total, right.type.scalar) else whole
        case Binary("*", x, Const(c)) if op == "*" and is_literal(c * b, right.type.scalar):
            return Binary("*", x, Const(c * b, right.type))
    return whole


def _float(expr: Expr, op: str, a: Expr, b: float | bool) -> Expr:
    """x - 0.0 is x even for -0.0, whereas x + 0.0 is not."""
    plain_zero = b == 0 and not str(b).startswith("-")
    if (op in ("*", "/") and b == 1 and not isinstance(b, bool)) or (op == "-" and plain_zero):
        return a
    return expr


def _fit(value: int, type: Type, otherwise: Expr) -> Expr:
    return Const(value, type) if is_literal(value, type.scalar) else otherwise


def _quotient(a: int, b: int) -> int:
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": _quotient,
    "%": lambda a, b: a - _quotient(a, b) * b,
    "min": min,
    "max": max,
}

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
