"""Expressions: translates Numba's IR, and Python's operators and functions of scalars, to the loop IR.

What the loop IR cannot express raises Unfusable, which names the line and the remedy.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numba.core import ir

from sparloom.fusion.frontend.environment import (
    ArrayName,
    Environment,
    Items,
    Matrix,
    Number,
    PythonObject,
    RangeValue,
    Value,
    convert,
    widest,
)
from sparloom.fusion.program import SourceLocation, refuse
from sparloom.ir import BOOL, F32, F64, I32, I64, Binary, Call, Const, Expr, Select, Type, Unary

_SAME = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}
_COMPARE = {operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==",
            operator.ne: "!="}
_LOGIC = {operator.and_: "and", operator.or_: "or"}
_IR_TYPES = {np.float32: F32, np.float64: F64, np.int32: I32, np.int64: I64, builtins.float: F64, builtins.int: I64}
_CALLS = {
    math.sqrt: "sqrt", math.exp: "exp", math.log: "log", math.tanh: "tanh", math.erf: "erf", math.fabs: "abs",
    np.sqrt: "sqrt", np.exp: "exp", np.log: "log", np.tanh: "tanh", np.abs: "abs", builtins.abs: "abs",
}
_DTYPES = {F32: np.float32, F64: np.float64, I32: np.int32, I64: np.int64}


def apply_binary(function: Any, a: Number, b: Number, *, result: Type, location: SourceLocation) -> Number:
    """Apply a binary operator; `result` is the type that Numba infers."""
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
    raise refuse(location, f"operator {function.__name__} on {a.type} and {b.type} is not supported: "
                        "use + - * /, comparisons, // and % of integers, or ** 2")


def apply_unary(function: Any, a: Number, *, result: Type, location: SourceLocation) -> Number:
    """Apply a unary operator."""
    if function is operator.neg:
        return Number(Unary("-", convert(a, result)), result)
    if function is operator.pos:
        return Number(convert(a, result), result)
    if function is operator.not_ and a.type == BOOL:
        return Number(Unary("not", a.expr), BOOL)
    raise refuse(location, f"operator {function.__name__} on {a.type} is not supported: use - or not")


def apply_function(function: Any, args: Sequence[Number], *, result: Type, location: SourceLocation) -> Number:
    """Call a function of scalars."""
    plain = _hashable(function)
    if function is bool and len(args) == 1:
        return Number(truth(args[0]), BOOL)
    if plain and function in _IR_TYPES and len(args) == 1:
        return Number(convert(args[0], _IR_TYPES[function]), _IR_TYPES[function])
    operands = [convert(arg, result) for arg in args]
    if plain and function in _CALLS and len(args) == 1:
        return Number(Call(_CALLS[function], tuple(operands)), result)
    if plain and function in _CHOICES and len(args) == 2:
        return Number(_CHOICES[function](*operands), result)
    name = getattr(function, "__qualname__", repr(function))
    known = sorted({each.__name__ for each in (*_CALLS, *_CHOICES, *_IR_TYPES, bool)})
    raise refuse(location, f"the call of {name} is not supported: the supported functions are {', '.join(known)}")


def truth(number: Number) -> Expr:
    """Convert a number to its truth value."""
    if number.type == BOOL:
        return number.expr
    return Binary("!=", number.expr, Const(0.0 if number.type in (F32, F64) else 0, number.type))


def _modulo(a: Expr, b: Expr) -> Expr:
    """Compute Python's remainder, which has the sign of the divisor; that of the IR has the sign of the dividend."""
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


def evaluate(node: Any, target: Any, env: Environment) -> Value:
    """Evaluate the right-hand side of an assignment to `target`."""
    location = env.location(node if hasattr(node, "loc") else target)
    match node:
        case ir.Var():
            return lookup(node, env)
        case ir.Arg():
            return _argument(node.name, target, env, location)
        case ir.Const() | ir.Global() | ir.FreeVar():
            return _constant(node.value, location)
        case ir.Expr():
            return _expression(node, target, env, location)
    raise refuse(location, f"{node} is not supported: keep to loops, branches, arithmetic and subscripts")


def lookup(variable: Any, env: Environment) -> Value:
    """Return the value of a variable; refuse a version of a mutable variable that has been overwritten."""
    leader = env.leader(variable)
    if leader is None or leader not in env.storage:
        return env.values[variable.name]
    if env.current.get(leader) != variable.name:
        name = env.storage[leader].expr.name
        raise refuse(env.location(variable), f"an older value of {name} is read after it changed: use another name for "
                     "it")
    return env.storage[leader]


def number(variable: Any, env: Environment) -> Number:
    """Return the value of a variable that must be a scalar."""
    value = lookup(variable, env)
    if not isinstance(value, Number):
        raise refuse(env.location(variable), f"{variable.name} is not a number: operations on whole arrays are not "
                     "supported")
    return value


def _argument(name: str, target: Any, env: Environment, location: SourceLocation) -> Value:
    allocation = env.allocations.get(name)
    if allocation is None:
        return env.argument(name, target)
    if env.loops:
        raise refuse(location, "an array is allocated inside a loop: allocate it before the loops")
    return env.new_array(target.name, lookup(allocation.shape, env), allocation=allocation, location=location)


def _constant(value: Any, location: SourceLocation) -> Value:
    if isinstance(value, (bool, np.bool_)):
        raise refuse(location, f"the constant {value}: use a comparison")
    if isinstance(value, (int, np.integer)):
        return Number(Const(int(value), I64), I64)
    if isinstance(value, (float, np.floating)):
        type = F32 if isinstance(value, np.float32) else F64
        return Number(Const(float(value), type), type)
    if isinstance(value, tuple):
        return Items(tuple(_constant(item, location) for item in value))
    return PythonObject(value)


def _expression(node: Any, target: Any, env: Environment, location: SourceLocation) -> Value:
    match node.op:
        case "binop" | "inplace_binop":
            function = node.fn if node.op == "binop" else node.immutable_fn
            a, b = number(node.lhs, env), number(node.rhs, env)
            return apply_binary(function, a, b, result=env.type(target), location=location)
        case "unary":
            function = getattr(operator, node.fn.__name__, node.fn)
            return apply_unary(function, number(node.value, env), result=env.type(target), location=location)
        case "cast" | "exhaust_iter" | "getiter":
            return lookup(node.value, env)
        case "build_tuple":
            return Items(tuple(lookup(item, env) for item in node.items))
        case "getattr":
            return _attribute(lookup(node.value, env), node, target, env, location)
        case "static_getitem":
            return _element(lookup(node.value, env), Number(Const(node.index, I64), I64), env, location)
        case "getitem":
            return _element(lookup(node.value, env), lookup(node.index, env), env, location)
        case "call":
            return _call(node, target, env, location)
    raise refuse(location, f"{node.op} is not supported: keep to loops, branches, arithmetic and subscripts")


def _attribute(owner: Value, node: Any, target: Any, env: Environment, location: SourceLocation) -> Value:
    match owner:
        case PythonObject(module) if isinstance(module, ModuleType):
            return _constant(getattr(module, node.attr), location)
        case Matrix(name) if node.attr == "shape":
            return Items(tuple(Number(env.scalar((name, "shape", axis), I64), I64) for axis in range(2)))
        case Matrix(name):
            return env.array_argument((name, node.attr), env.numba_types[target.name], target)
        case ArrayName(name) if node.attr == "shape":
            return Items(tuple(Number(extent, I64) for extent in env.arrays[name].extents))
        case ArrayName(name) if node.attr == "dtype":
            return PythonObject(_DTYPES[env.arrays[name].type])
    raise refuse(location, f"attribute {node.attr} is not supported: arrays have .shape and .dtype, sparse matrices "
                        ".p, .i, .x and .shape")


def _element(owner: Value, index: Value, env: Environment, location: SourceLocation) -> Value:
    match owner, index:
        case Items(values), Number(Const(position)):
            return values[position]
        case ArrayName(name), _:
            return env.load(name, index, location)
    raise refuse(location, "a subscript of something that is not an array: index arrays and shapes only")


def _call(node: Any, target: Any, env: Environment, location: SourceLocation) -> Value:
    callee = lookup(node.func, env)
    if not isinstance(callee, PythonObject):
        raise refuse(location, "a call of something that is not a function")
    function = callee.value
    if function is range:
        return _bounds([number(arg, env) for arg in node.args], node.func.name in env.marks, location)
    if node.kws:
        raise refuse(location, f"keywords in the call of {function.__name__}: pass arguments by position")
    args = [number(arg, env) for arg in node.args]
    return apply_function(function, args, result=env.type(target), location=location)


def _bounds(args: list[Number], marked: bool, location: SourceLocation) -> RangeValue:
    whole = [convert(arg, I64) for arg in args]
    lo, hi = (Const(0, I64), whole[0]) if len(whole) == 1 else whole[:2]
    step = whole[2] if len(whole) == 3 else Const(1, I64)
    if not (isinstance(step, Const) and step.value > 0):
        raise refuse(location, "the step of a loop is not a positive constant: write it as a number")
    return RangeValue(lo, hi, step.value, marked)
