"""The meaning of kernels, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.ir.memory import DTYPES, Memory
from sparloom.ir.nodes import (
    Accumulate,
    Alloc,
    Assign,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Multiply,
    Prefetch,
    Ref,
    Select,
    Stmt,
    Store,
    Sum,
    Unary,
)
from sparloom.ir.products import product_loops
from sparloom.ir.verify import verify

__all__ = ["interpret"]


def interpret(kernel: Kernel, **arguments: Any) -> None:
    """Run a kernel on NumPy arrays, changing its buffers in place; slow.

    Iterations run one after the other, in order, also those of parallel, shared and simd loops.

    Args:
        arguments: one per parameter, by name; buffers are C-contiguous arrays of the dtype of the parameter.

    Raises:
        TypeError: arguments do not fit the parameters.
        IllegalSchedule: the kernel does not verify, or two iterations of a parallel loop touch the same element and at
            least one writes it.
        IndexError: a load or store out of bounds.
        ValueError: a load of an array element that was never stored.
        ZeroDivisionError: an integer divided by zero.
    """
    verify(kernel)
    given, wanted = set(arguments), {param.name for param in kernel.params}
    if given != wanted:
        missing, extra = sorted(wanted - given), sorted(given - wanted)
        raise TypeError(f"kernel {kernel.name}: missing arguments {missing}, unknown arguments {extra}")
    memory, values = Memory(), {}
    for param in kernel.params:
        dtype = DTYPES[param.type.scalar]
        if param.buffer:
            memory.bind(param.name, arguments[param.name], dtype)
        else:
            values[param.name] = dtype(arguments[param.name])
    with np.errstate(all="ignore"):
        _Machine(memory).block(kernel.body, values)


class _Machine:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def block(self, body: tuple[Stmt, ...], values: dict[str, Any]) -> None:
        """Run `body`; names it declares are gone afterwards."""
        declared = []
        for stmt in body:
            self._stmt(stmt, values)
            if isinstance(stmt, (Let, Declare)):
                declared.append(stmt.name)
        for name in declared:
            del values[name]

    def _stmt(self, stmt: Stmt, values: dict[str, Any]) -> None:
        match stmt:
            case For():
                self._for(stmt, values)
            case If(cond, body, orelse):
                self.block(body if self.value(cond, values) else orelse, values)
            case Let(name, _, value) | Declare(name, _, value) | Assign(name, value):
                values[name] = self.value(value, values)
            case Store(buffer, index, value):
                self.memory.store(buffer, int(self.value(index, values)), self.value(value, values))
            case Accumulate(buffer, index, value):
                start, added = int(self.value(index, values)), self.value(value, values)
                old = self.memory.load(buffer, start, np.size(added))
                self.memory.store(buffer, start, old + added)
            case Alloc(name, scalar, size):
                count = size if isinstance(size, int) else int(self.value(size, values))
                self.memory.alloc(name, count, DTYPES[scalar])
            case Multiply():
                type = self.memory.type(stmt.c.buffer)
                self._stmt(product_loops(stmt, type, {*values, *self.memory.names()}), values)
            case Prefetch():
                pass

    def _for(self, loop: For, values: dict[str, Any]) -> None:
        lo, hi = int(self.value(loop.lo, values)), int(self.value(loop.hi, values))
        if loop.kind == "parallel":
            self.memory.fork(loop.var)
        for iteration in range(lo, hi, loop.step):
            if loop.kind == "parallel":
                self.memory.enter(iteration)
            values[loop.var] = np.int64(iteration)
            self.block(loop.body, values)
        values.pop(loop.var, None)
        if loop.kind == "parallel":
            self.memory.join()

    def value(self, expr: Expr, values: Mapping[str, Any]) -> Any:
        """Evaluate to a NumPy scalar, or to an array of the lanes."""
        match expr:
            case Const(value, type):
                return DTYPES[type.scalar](value)
            case Ref(name):
                return values[name]
            case Load(buffer, index, lanes):
                return self.memory.load(buffer, int(self.value(index, values)), lanes)
            case Binary("and" | "or" as op, a, b) if np.ndim(left := self.value(a, values)) == 0:
                return left if bool(left) == (op == "or") else self.value(b, values)
            case Binary(op, a, b):
                return _BINARY[op](self.value(a, values), self.value(b, values))
            case Unary(op, a):
                operand = self.value(a, values)
                return np.negative(operand) if op == "-" else np.logical_not(operand)
            case Broadcast(a, lanes):
                return np.full(lanes, self.value(a, values)) if lanes > 1 else self.value(a, values)
            case Sum(a):
                return _sum(self.value(a, values))
            case Cast(type, a):
                return self.value(a, values).astype(DTYPES[type.scalar])
            case Select(cond, a, b):
                chosen = self.value(cond, values)
                if np.ndim(chosen) == 0:
                    return self.value(a if chosen else b, values)
                return np.where(chosen, self.value(a, values), self.value(b, values))
            case Call(name, (a,)):
                operand = self.value(a, values)
                return _CALLS[name](operand).astype(operand.dtype)
        raise IllegalSchedule(f"{expr!r} has no meaning")


def _sum(lanes: np.ndarray) -> Any:
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


def _choose(cond: Any, a: Any, b: Any) -> Any:
    return np.where(cond, a, b)[()]


def _quotient(a: Any, b: Any) -> Any:
    if np.any(b == 0):
        raise ZeroDivisionError("integer divided by zero")
    return (np.abs(a) // np.abs(b) * (np.sign(a) * np.sign(b))).astype(a.dtype)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": _quotient,
    "%": lambda a, b: a - _quotient(a, b) * b,
    "min": lambda a, b: _choose(a < b, a, b),
    "max": lambda a, b: _choose(a > b, a, b),
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}

_CALLS: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "abs": np.abs,
}
