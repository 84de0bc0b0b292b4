"""Python's operators and functions on scalars in the words of the loop IR."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparloom.fusion.frontend.refusal import refuse
from sparloom.fusion.frontend.values import Number, convert, widest
from sparloom.fusion.program import Place
from sparloom.ir import BOOL, F32, F64, I32, I64, Binary, Call, Const, Expr, Select, Type, Unary

__all__ = ["apply_binary", "apply_function", "apply_unary", "truth"]

_SAME = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}
_COMPARE = {operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==",
            operator.ne: "!="}
_LOGIC = {operator.and_: "and", operator.or_: "or"}
_DTYPES = {np.float32: F32, np.float64: F64, np.int32: I32, np.int64: I64, builtins.float: F64, builtins.int: I64}
_CALLS = {
    math.sqrt: "sqrt", math.exp: "exp", math.log: "log", math.tanh: "tanh", math.erf: "erf", math.fabs: "abs",
    np.sqrt: "sqrt", np.exp: "exp", np.log: "log", np.tanh: "tanh", np.abs: "abs", builtins.abs: "abs",
}


def apply_binary(function: Any, a: Number, b: Number, *, result: Type, place: Place) -> Number:
    """Apply a binary operator; `result` is the type that Numba gives it.

    Raises:
        Unfusable: the operator has no counterpart.
    """
    if function in _COMPARE:
        both = widest(a.type, b.type)
        return Number(Binary(_COMPARE[function], convert(a, both), convert(b, both)), BOOL)
    if function in _LOGIC and result == BOOL:
        return Number(Binary(_LOGIC[function], a.expr, b.expr), BOOL)
    x, y = convert(a, result), convert(b, result)
    if function in _SAME:
        return Number(Binary(_SAME[function], x, y), result)
    if function in (operator.floordiv, operator.mod) and result in (I32, I64):
        remainder = _modulo(x, y)
        return Number(remainder if function is operator.mod else Binary("//", x - remainder, y), result)
    if function is operator.pow and isinstance(b.expr, Const) and b.expr.value == 2:
        return Number(x * x, result)
    raise refuse(place, f"operator {function.__name__} on {a.type} and {b.type} is not understood: "
                        "use + - * /, comparisons, // and % of integers, or ** 2")


def apply_unary(function: Any, a: Number, *, result: Type, place: Place) -> Number:
    """Apply a unary operator.

    Raises:
        Unfusable: the operator has no counterpart.
    """
    if function is operator.neg:
        return Number(Unary("-", convert(a, result)), result)
    if function is operator.pos:
        return Number(convert(a, result), result)
    if function is operator.not_ and a.type == BOOL:
        return Number(Unary("not", a.expr), BOOL)
    raise refuse(place, f"operator {function.__name__} on {a.type} is not understood: use - or not")


def apply_function(function: Any, args: Sequence[Number], *, result: Type, place: Place) -> Number:
    """Call a function of scalars.

    Raises:
        Unfusable: it is none of those with a counterpart.
    """
    plain = _hashable(function)
    if function is bool and len(args) == 1:
        return Number(truth(args[0]), BOOL)
    if plain and function in _DTYPES and len(args) == 1:
        return Number(convert(args[0], _DTYPES[function]), _DTYPES[function])
    operands = [convert(arg, result) for arg in args]
    if plain and function in _CALLS and len(args) == 1:
        return Number(Call(_CALLS[function], tuple(operands)), result)
    if plain and function in _CHOICES and len(args) == 2:
        return Number(_CHOICES[function](*operands), result)
    name = getattr(function, "__qualname__", repr(function))
    known = sorted({each.__name__ for each in (*_CALLS, *_CHOICES, *_DTYPES, bool)})
    raise refuse(place, f"the call of {name} is not understood: there are {', '.join(known)}")


def truth(number: Number) -> Expr:
    """Tell whether a number is not zero."""
    if number.type == BOOL:
        return number.expr
    return Binary("!=", number.expr, Const(0.0 if number.type in (F32, F64) else 0, number.type))


def _modulo(a: Expr, b: Expr) -> Expr:
    """Python's remainder has the sign of the divisor, that of the IR the sign of the dividend."""
    return Binary("%", Binary("%", a, b) + b, b)


def _hashable(function: Any) -> bool:
    return callable(function) and getattr(type(function), "__hash__", None) is not None


def _nan_or(op: str, a: Expr, b: Expr) -> Expr:
    return Select(Binary("or", Binary(op, a, b), Binary("!=", a, a)), a, b)


_CHOICES: dict[Any, Callable[[Expr, Expr], Expr]] = {
    builtins.max: lambda a, b: Binary("max", b, a),  # Python keeps the first of equals
    builtins.min: lambda a, b: Binary("min", b, a),
    np.maximum: lambda a, b: _nan_or(">", a, b),
    np.minimum: lambda a, b: _nan_or("<", a, b),
}
