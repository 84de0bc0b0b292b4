"""Expressions of the IR as C text, with as few parentheses as the precedence allows."""

from __future__ import annotations

import math

import numpy as np

from sparloom.ir.nodes import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Ref,
    Select,
    Sum,
    Type,
    Unary,
)
from sparloom.ir.types import COMPARISONS, Scope, type_of

__all__ = ["C_TYPES", "CExpressions", "c_type"]

C_TYPES = {"i32": "int32_t", "i64": "int64_t", "f32": "float", "f64": "double", "bool": "bool"}

_OPERATORS = {"//": "/", "and": "&&", "or": "||"}
_VECTOR_OPERATORS = {"//": "/", "and": "&", "or": "|"}
_LEVELS = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "|": 4, "&&": 3, "||": 2,
}
_PRIMARY, _PREFIX, _SELECT = 12, 11, 1


def c_type(type: Type) -> str:
    """Name a type in C; the prelude defines those of vectors."""
    return C_TYPES[type.scalar] if type.lanes == 1 else str(type)


class CExpressions:
    """Prints expressions and collects in `needs` the (helper, type) pairs that the prelude must define."""

    def __init__(self, convert: str) -> None:
        self.convert = convert  # conversion of vectors, to be formatted with text and type
        self.needs: set[tuple[str, Type]] = set()

    def text(self, expr: Expr, scope: Scope) -> str:
        """Print an expression."""
        return self._print(expr, scope)[0]

    def operand(self, expr: Expr, scope: Scope, level: int = 10) -> str:
        """Print an expression so that it binds at least as tightly as `level`."""
        text, own = self._print(expr, scope)
        return text if own >= level else f"({text})"

    def type(self, type: Type) -> str:
        """Name a type, and note that the prelude must define it if it is a vector."""
        if type.lanes > 1:
            self.needs.add(("type", type))
        return c_type(type)

    def _helper(self, name: str, type: Type) -> str:
        self.type(type)
        self.needs.add((name, type))
        return f"{name}_{type}"

    def _print(self, expr: Expr, scope: Scope) -> tuple[str, int]:
        """Text and level of its outermost operator."""
        match expr:
            case Const(value, type):
                return _constant(value, type)
            case Ref(name):
                return name, _PRIMARY
            case Load(buffer, index, 1):
                return f"{buffer}[{self.text(index, scope)}]", _PRIMARY
            case Load(buffer, index, _):
                return f"*(const {self.type(type_of(expr, scope))} *)({buffer} + {self.operand(index, scope)})", _PREFIX
            case Binary():
                return self._binary(expr, scope)
            case Unary(op, a):
                sign = "-" if op == "-" else "!" if type_of(a, scope).lanes == 1 else "~"
                return f"{sign}{self.operand(a, scope, _PRIMARY)}", _PREFIX
            case Broadcast(a, _):
                return f"{self._helper('broadcast', type_of(expr, scope))}({self.text(a, scope)})", _PRIMARY
            case Sum(a):
                return f"{self._helper('sum', type_of(a, scope))}({self.text(a, scope)})", _PRIMARY
            case Cast(type, a):
                if type.lanes == 1:
                    return f"({C_TYPES[type.scalar]}){self.operand(a, scope, _PREFIX)}", _PREFIX
                return self.convert.format(self.text(a, scope), self.type(type)), _PRIMARY
            case Select():
                return self._select(expr, scope)
            case Call(name, (a,)):
                return f"{self._call(name, type_of(expr, scope))}({self.text(a, scope)})", _PRIMARY
        raise TypeError(f"{expr!r} is not an expression of the IR")

    def _binary(self, expr: Binary, scope: Scope) -> tuple[str, int]:
        type = type_of(expr.a, scope)
        if expr.op in ("min", "max"):
            return f"{self._helper(expr.op, type)}({self.text(expr.a, scope)}, {self.text(expr.b, scope)})", _PRIMARY
        op = (_OPERATORS if type.lanes == 1 else _VECTOR_OPERATORS).get(expr.op, expr.op)
        level = _LEVELS[op]
        # comparisons do not chain, and mixing & | with others reads better in parentheses
        tighter = level + 1 if expr.op in COMPARISONS or op in ("&", "|") else level
        a, b = self.operand(expr.a, scope, tighter), self.operand(expr.b, scope, level + 1)
        if _is_constant(expr.a) and _is_constant(expr.b) and type == Type("i64"):
            a = f"(int64_t){a}"  # else C would compute in int
        text = f"{a} {op} {b}"
        if type.lanes > 1 and expr.op in COMPARISONS:
            mask = self.type(Type("bool", type.lanes))
            wide = type.scalar in ("i64", "f64")
            return (self.convert.format(text, mask) if wide else f"({mask})({text})"), _PREFIX
        return text, level

    def _select(self, expr: Select, scope: Scope) -> tuple[str, int]:
        type = type_of(expr.a, scope)
        cond, a, b = expr.cond, expr.a, expr.b
        if type.lanes > 1:
            name = self._helper("select", type)
            return f"{name}({self.text(cond, scope)}, {self.text(a, scope)}, {self.text(b, scope)})", _PRIMARY
        first = self.operand(a, scope, _SELECT + 1)
        if type == Type("i64") and _is_constant(a) and _is_constant(b):
            first = f"(int64_t){self.operand(a, scope, _PRIMARY)}"
        return f"{self.operand(cond, scope, _SELECT + 1)} ? {first} : {self.operand(b, scope, _SELECT + 1)}", _SELECT

    def _call(self, name: str, type: Type) -> str:
        if type.lanes > 1 or (name == "abs" and type.scalar in ("i32", "i64")) or (name, type.scalar) == ("exp", "f32"):
            return self._helper(name, type)
        return ("fabs" if name == "abs" else name) + ("f" if type.scalar == "f32" else "")


def _is_constant(expr: Expr) -> bool:
    """Whether C sees only literals of type int in `expr`."""
    match expr:
        case Const():
            return True
        case Binary(_, a, b) | Select(_, a, b):
            return _is_constant(a) and _is_constant(b)
        case Unary(_, a):
            return _is_constant(a)
    return False


def _constant(value: float | int | bool, type: Type) -> tuple[str, int]:
    if type.scalar == "bool":
        return ("true" if value else "false"), _PRIMARY
    if type.scalar in ("i32", "i64"):
        return str(value), _PRIMARY if value >= 0 else _PREFIX
    suffix = "f" if type.scalar == "f32" else ""
    number = np.float32(value) if suffix else np.float64(value)
    if math.isnan(number):
        return "NAN", _PRIMARY
    sign = "-" if np.signbit(number) else ""
    text = "INFINITY" if math.isinf(number) else f"{abs(number)!s}{suffix}"
    return sign + text, _PREFIX if sign else _PRIMARY
