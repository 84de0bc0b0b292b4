"""Types of expressions in a scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sparloom.errors import IllegalSchedule
from sparloom.ir.nodes import (
    I64,
    Assign,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Ref,
    Select,
    Sum,
    Type,
    Unary,
)

__all__ = [
    "ARITHMETIC", "CALLS", "COMPARISONS", "FLOAT_CALLS", "LOGIC", "Binding", "Scope", "bind_params", "check_index",
    "check_type", "is_literal", "reduction_op", "type_of",
]

ARITHMETIC = ("+", "-", "*", "/", "//", "%", "min", "max")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
LOGIC = ("and", "or")
FLOAT_CALLS = ("sqrt", "exp", "log", "tanh", "erf")  # named alike in C
CALLS = (*FLOAT_CALLS, "abs")

_FLOATS = ("f32", "f64")
_INTEGERS = ("i32", "i64")
_MAX_LANES = 64


@dataclass(frozen=True)
class Binding:
    """What a name stands for; `writable` buffers and arrays may be stored to."""

    role: Literal["let", "mutable", "loop", "buffer"]
    type: Type
    writable: bool = False


Scope = Mapping[str, Binding]


def bind_params(params: tuple[Param, ...]) -> dict[str, Binding]:
    """Make the scope at the top of a kernel."""
    return {p.name: Binding("buffer" if p.buffer else "let", p.type, p.buffer and not p.const) for p in params}


def reduction_op(stmt: Assign) -> str | None:
    """Give the op of `name = name op value` that a simd loop may reduce by: +, min or max."""
    match stmt.value:
        case Binary("+" | "min" | "max" as op, Ref(name), _) if name == stmt.name:
            return op
    return None


def type_of(expr: Expr, scope: Scope) -> Type:
    """Find the type of `expr`, all parts checked.

    Raises:
        IllegalSchedule: an unknown name, operands of unequal types, or an operator that does not take them.
    """
    match expr:
        case Const(value, type):
            return _const(value, type)
        case Ref(name):
            binding = _lookup(name, scope)
            if binding.role == "buffer":
                raise IllegalSchedule(f"{name} is a buffer, not a value: use Load({name!r}, index)")
            return binding.type
        case Load(buffer, index, lanes):
            return _load(buffer, index, lanes, scope)
        case Binary():
            return _binary(expr, scope)
        case Unary(op, a):
            return _unary(op, type_of(a, scope))
        case Broadcast(a, lanes):
            scalar = type_of(a, scope)
            if scalar.lanes != 1:
                raise IllegalSchedule(f"broadcast of {scalar}: only one value can be copied into all lanes")
            return check_type(Type(scalar.scalar, lanes))
        case Sum(a):
            vector = type_of(a, scope)
            if vector.lanes == 1 or vector.scalar == "bool":
                raise IllegalSchedule(f"sum of {vector}: only vectors of numbers have lanes to add")
            return Type(vector.scalar)
        case Cast(type, a):
            given = type_of(a, scope)
            if given.lanes != type.lanes or "bool" in (type.scalar, given.scalar):
                raise IllegalSchedule(f"cast of {given} to {type}: lanes stay, and bool is made by comparing")
            return check_type(type)
        case Select(cond, a, b):
            return _select(type_of(cond, scope), type_of(a, scope), type_of(b, scope))
        case Call(name, args):
            return _call(name, [type_of(arg, scope) for arg in args])
    raise TypeError(f"{expr!r} is not an expression of the IR")


def is_literal(value: int, scalar: str) -> bool:
    """Tell whether C can write `value` as a constant of an integer type: the least one it cannot."""
    return abs(value) < 2 ** (31 if scalar == "i32" else 63)


def check_type(type: Type) -> Type:
    """Return `type` if its lanes are a power of two up to 64."""
    if not 1 <= type.lanes <= _MAX_LANES or type.lanes & (type.lanes - 1):
        raise IllegalSchedule(f"type {type}: lanes must be a power of two from 1 to {_MAX_LANES}")
    return type


def _lookup(name: str, scope: Scope) -> Binding:
    if name not in scope:
        raise IllegalSchedule(f"name {name} is not in scope; there are: {', '.join(scope) or 'none'}")
    return scope[name]


def _const(value: float | int | bool, type: Type) -> Type:
    if type.lanes != 1:
        raise IllegalSchedule(f"constant {value} of type {type}: use Broadcast(Const(...), {type.lanes})")
    integral = isinstance(value, int) and not isinstance(value, bool)
    if type.scalar == "bool":
        fits = isinstance(value, bool)
    elif type.scalar in _INTEGERS:
        fits = integral and is_literal(value, type.scalar)
    else:
        fits = integral or isinstance(value, float)
    if not fits:
        raise IllegalSchedule(f"constant {value!r} is no {type}")
    return type


def _load(buffer: str, index: Expr, lanes: int, scope: Scope) -> Type:
    binding = _lookup(buffer, scope)
    if binding.role != "buffer":
        raise IllegalSchedule(f"{buffer} is a value, not a buffer: use Ref({buffer!r})")
    check_index(buffer, index, scope)
    if lanes != 1 and binding.type.scalar == "bool":
        raise IllegalSchedule(f"vector load from {buffer}: vectors of bool are made by comparing, not loaded")
    return check_type(Type(binding.type.scalar, lanes))


def check_index(buffer: str, index: Expr, scope: Scope) -> None:
    """Raise IllegalSchedule unless `index` is an i64."""
    given = type_of(index, scope)
    if given != I64:
        raise IllegalSchedule(f"index of {buffer} is {given}, not i64: use Cast(I64, index)")


def _binary(expr: Binary, scope: Scope) -> Type:
    a, b, op = type_of(expr.a, scope), type_of(expr.b, scope), expr.op
    if a != b:
        raise IllegalSchedule(f"operands of {op} are {a} and {b}: use Cast or Broadcast to make them equal")
    if op in LOGIC:
        taken = ("bool",)
    elif op == "/":
        taken = _FLOATS
    elif op in ("//", "%"):
        taken = _INTEGERS
    elif op in ARITHMETIC or op in COMPARISONS:
        taken = _INTEGERS + _FLOATS
    else:
        raise IllegalSchedule(f"no binary operator {op!r}; there are: {' '.join(ARITHMETIC + COMPARISONS + LOGIC)}")
    if a.scalar not in taken:
        raise IllegalSchedule(f"operator {op} does not take {a}; it takes {', '.join(taken)}")
    return Type("bool", a.lanes) if op in COMPARISONS else a


def _unary(op: str, a: Type) -> Type:
    if op not in ("-", "not"):
        raise IllegalSchedule(f"no unary operator {op!r}; there are: - not")
    if (a.scalar == "bool") != (op == "not"):
        raise IllegalSchedule(f"operator {op} does not take {a}; it takes {'bool' if op == 'not' else 'numbers'}")
    return a


def _select(cond: Type, a: Type, b: Type) -> Type:
    if cond.scalar != "bool" or a != b or a.lanes != cond.lanes:
        rule = "the branches have one type and the condition is bool of as many lanes"
        raise IllegalSchedule(f"select of {a} and {b} by {cond}: {rule}")
    return a


def _call(name: str, args: list[Type]) -> Type:
    if name not in CALLS:
        raise IllegalSchedule(f"no function {name!r}; there are: {', '.join(CALLS)}")
    if len(args) != 1 or (args[0].scalar not in _FLOATS and name != "abs") or args[0].scalar == "bool":
        taken = "one number" if name == "abs" else "one float"
        raise IllegalSchedule(f"{name} of ({', '.join(map(str, args))}): it takes {taken}")
    return args[0]
