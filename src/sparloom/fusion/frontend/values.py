"""What a variable of a function can stand for while it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparloom.fusion.frontend.refusal import refuse
from sparloom.fusion.program import Place
from sparloom.ir import BOOL, F32, F64, I32, I64, Const, Expr, Select, Type
from sparloom.ir import Cast as IrCast

__all__ = [
    "ArrayName", "Bounds", "Items", "Matrix", "Number", "PythonObject", "Value", "convert", "scalar_type", "widest",
]

_ORDER = (BOOL, I32, I64, F32, F64)


@dataclass(frozen=True)
class Number:
    """A scalar."""

    expr: Expr
    type: Type


@dataclass(frozen=True)
class ArrayName:
    """An array of the program."""

    name: str


@dataclass(frozen=True)
class Matrix:
    """A sparse argument; its attributes are arrays."""

    name: str


@dataclass(frozen=True)
class Items:
    """A tuple."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Bounds:
    """range(lo, hi, step), or fprange if `marked`."""

    lo: Expr
    hi: Expr
    step: int
    marked: bool


@dataclass(frozen=True)
class PythonObject:
    """A module, function or dtype."""

    value: Any


Value = Number | ArrayName | Matrix | Items | Bounds | PythonObject


def convert(number: Number, type: Type) -> Expr:
    """Bring a number into another type, exactly where it is a constant that fits."""
    expr = number.expr
    if number.type == type:
        return expr
    if number.type == BOOL:
        one, zero = (1.0, 0.0) if type in (F32, F64) else (1, 0)
        return Select(expr, Const(one, type), Const(zero, type))
    if isinstance(expr, Const) and (type in (F32, F64) or number.type in (I32, I64)):
        return Const(float(expr.value) if type in (F32, F64) else expr.value, type)
    return IrCast(type, expr)


def widest(*types: Type) -> Type:
    """Find the type that holds the values of all, as Numba does."""
    chosen = max(types, key=_ORDER.index)
    return F64 if chosen == F32 and I64 in types else chosen


def scalar_type(numba_type: Any, place: Place) -> Type:
    """Translate the Numba type of a scalar or of the elements of an array.

    Raises:
        Unfusable: the loop IR has no such type.
    """
    from numba.core import types

    if isinstance(numba_type, types.Literal):
        numba_type = numba_type.literal_type
    known = {types.boolean: BOOL, types.int32: I32, types.int64: I64, types.uint64: I64, types.float32: F32,
             types.float64: F64}
    if numba_type not in known:
        raise refuse(place, f"a value of type {numba_type}: use int32, int64, float32, float64 or bool")
    return known[numba_type]
