"""Expressions of Numba's IR as values of the front end."""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

import numpy as np

from sparloom.fusion.frontend.arithmetic import apply_binary, apply_function, apply_unary
from sparloom.fusion.frontend.environment import Environment
from sparloom.fusion.frontend.refusal import refuse
from sparloom.fusion.frontend.values import ArrayName, Bounds, Items, Matrix, Number, PythonObject, Value, convert
from sparloom.fusion.program import Place
from sparloom.ir import F32, F64, I32, I64, Const

__all__ = ["evaluate"]

_DTYPES = {F32: np.float32, F64: np.float64, I32: np.int32, I64: np.int64}


def evaluate(node: Any, target: Any, env: Environment) -> Value:
    """Read the right side of an assignment to `target`.

    Raises:
        Unfusable: something that the loop IR cannot say; the message names the line.
    """
    from numba.core import ir

    place = env.place(node if hasattr(node, "loc") else target)
    match node:
        case ir.Var():
            return lookup(node, env)
        case ir.Arg():
            return _argument(node.name, target, env, place)
        case ir.Const():
            return _constant(node.value, place)
        case ir.Global() | ir.FreeVar():
            return _constant(node.value, place)
        case ir.Expr():
            return _expression(node, target, env, place)
    raise refuse(place, f"{node} is not understood: keep to loops, branches, arithmetic and subscripts")


def lookup(variable: Any, env: Environment) -> Value:
    """Read a variable.

    Raises:
        Unfusable: a version of a changing variable that has been overwritten.
    """
    leader = env.leader(variable)
    if leader is None or leader not in env.storage:
        return env.values[variable.name]
    if env.current.get(leader) != variable.name:
        name = env.storage[leader].expr.name
        raise refuse(env.place(variable), f"an older value of {name} is read after it changed: use another name for it")
    return env.storage[leader]


def number(variable: Any, env: Environment) -> Number:
    """Read a variable that must be a scalar."""
    value = lookup(variable, env)
    if not isinstance(value, Number):
        raise refuse(env.place(variable), f"{variable.name} is no number: whole arrays are not computed with")
    return value


def _argument(name: str, target: Any, env: Environment, place: Place) -> Value:
    made = env.made.get(name)
    if made is None:
        return env.argument(name, target)
    if env.loops:
        raise refuse(place, "an array is made inside a loop: make it before the loops")
    return env.new_array(target.name, lookup(made.shape, env), made=made, place=place)


def _constant(value: Any, place: Place) -> Value:
    if isinstance(value, (bool, np.bool_)):
        raise refuse(place, f"the constant {value}: use a comparison")
    if isinstance(value, (int, np.integer)):
        return Number(Const(int(value), I64), I64)
    if isinstance(value, (float, np.floating)):
        type = F32 if isinstance(value, np.float32) else F64
        return Number(Const(float(value), type), type)
    if isinstance(value, tuple):
        return Items(tuple(_constant(item, place) for item in value))
    return PythonObject(value)


def _expression(node: Any, target: Any, env: Environment, place: Place) -> Value:
    match node.op:
        case "binop" | "inplace_binop":
            function = node.fn if node.op == "binop" else node.immutable_fn
            a, b = number(node.lhs, env), number(node.rhs, env)
            return apply_binary(function, a, b, result=env.type(target), place=place)
        case "unary":
            function = getattr(operator, node.fn.__name__, node.fn)
            return apply_unary(function, number(node.value, env), result=env.type(target), place=place)
        case "cast" | "exhaust_iter":
            return lookup(node.value, env)
        case "build_tuple":
            return Items(tuple(lookup(item, env) for item in node.items))
        case "getattr":
            return _attribute(lookup(node.value, env), node, target, env, place)
        case "static_getitem":
            return _element(lookup(node.value, env), Number(Const(node.index, I64), I64), env, place)
        case "getitem":
            return _element(lookup(node.value, env), lookup(node.index, env), env, place)
        case "call":
            return _call(node, target, env, place)
        case "getiter":
            return lookup(node.value, env)
    raise refuse(place, f"{node.op} is not understood: keep to loops, branches, arithmetic and subscripts")


def _attribute(owner: Value, node: Any, target: Any, env: Environment, place: Place) -> Value:
    match owner:
        case PythonObject(module) if isinstance(module, ModuleType):
            return _constant(getattr(module, node.attr), place)
        case Matrix(name) if node.attr == "shape":
            return Items(tuple(Number(env.scalar((name, "shape", axis), I64), I64) for axis in range(2)))
        case Matrix(name):
            return env.array_argument((name, node.attr), env.numba_type(target), target)
        case ArrayName(name) if node.attr == "shape":
            return Items(tuple(Number(extent, I64) for extent in env.arrays[name].extents))
        case ArrayName(name) if node.attr == "dtype":
            return PythonObject(_DTYPES[env.arrays[name].type])
    raise refuse(place, f"attribute {node.attr} is not understood: arrays have .shape and .dtype, sparse matrices "
                        ".p, .i, .x and .shape")


def _element(owner: Value, index: Value, env: Environment, place: Place) -> Value:
    match owner, index:
        case Items(values), Number(Const(position)):
            return values[position]
        case ArrayName(name), _:
            return env.load(name, index, place)
    raise refuse(place, "a subscript of something that is no array: index arrays and shapes only")


def _call(node: Any, target: Any, env: Environment, place: Place) -> Value:
    callee = lookup(node.func, env)
    if not isinstance(callee, PythonObject):
        raise refuse(place, "a call of something that is no function")
    function = callee.value
    if function is range:
        return _bounds([number(arg, env) for arg in node.args], env.is_marked(node.func), place)
    if node.kws:
        raise refuse(place, f"keywords in the call of {function.__name__}: pass arguments by position")
    args = [number(arg, env) for arg in node.args]
    return apply_function(function, args, result=env.type(target), place=place)


def _bounds(args: list[Number], marked: bool, place: Place) -> Bounds:
    whole = [convert(arg, I64) for arg in args]
    lo, hi = (Const(0, I64), whole[0]) if len(whole) == 1 else whole[:2]
    step = whole[2] if len(whole) == 3 else Const(1, I64)
    if not (isinstance(step, Const) and step.value > 0):
        raise refuse(place, "the step of a loop is no positive constant: write it as a number")
    return Bounds(lo, hi, step.value, marked)
