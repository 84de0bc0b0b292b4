"""The interpreter: defines the meaning of kernels in NumPy, and detects races and accesses out of bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.ir import nodes as ir
from sparloom.ir.transform import lower_product
from sparloom.ir.verify import verify


def interpret(kernel: ir.Kernel, **arguments: Any) -> None:
    """Run a kernel on NumPy arrays, in place; slow.

    Iterations of all loops run sequentially, including those of parallel, shared and simd loops.

    Args:
        arguments: one per parameter, by name; buffers are C-contiguous arrays of the parameter's dtype.

    Raises:
        TypeError: arguments do not match the parameters.
        IllegalSchedule: the kernel does not verify, or two iterations of a parallel loop access the same element and at
            least one writes it.
        IndexError: an access is out of bounds.
        ValueError: an element of a local array is read before it is written.
        ZeroDivisionError: an integer is divided by zero.
    """
    verify(kernel)
    passed, wanted = set(arguments), {param.name for param in kernel.params}
    if passed != wanted:
        missing, extra = sorted(wanted - passed), sorted(passed - wanted)
        raise TypeError(f"kernel {kernel.name}: missing arguments {missing}, unknown arguments {extra}")
    memory, values = _Memory(), {}
    for param in kernel.params:
        dtype = ir.DTYPES[param.type.scalar]
        if param.buffer:
            memory.bind(param.name, arguments[param.name], dtype)
        else:
            values[param.name] = dtype(arguments[param.name])
    with np.errstate(all="ignore"):
        _Machine(memory).block(kernel.body, values)


class InterpretedLibrary:
    """Replaces `sparloom.jit.compile_c` and the library that it returns: kernels are interpreted, which is slow.

    Example: `sparloom.ragged.Structure(lengths, InterpretedLibrary)` builds its tables without a compiler.
    """

    def __init__(self, kernels: Sequence[ir.Kernel]) -> None:
        self._kernels = {kernel.name: kernel for kernel in kernels}

    def function(self, name: str) -> Callable[..., None]:
        """Return a function that takes the arguments of a kernel in order."""
        kernel = self._kernels[name]
        return lambda *values: interpret(
            kernel, **dict(zip((param.name for param in kernel.params), values, strict=True)))

    @property
    def threads(self) -> int:
        """Always 1."""
        return 1

    def set_threads(self, count: int) -> None:
        """Ignore the number, since iterations run sequentially."""


class _Machine:
    def __init__(self, memory: _Memory) -> None:
        self.memory = memory

    def block(self, body: tuple[ir.Stmt, ...], values: dict[str, Any]) -> None:
        """Run a block; names that it declares go out of scope at its end."""
        declared = []
        for stmt in body:
            self._stmt(stmt, values)
            if isinstance(stmt, (ir.Let, ir.Declare)):
                declared.append(stmt.name)
        for name in declared:
            del values[name]

    def _stmt(self, stmt: ir.Stmt, values: dict[str, Any]) -> None:
        match stmt:
            case ir.For():
                self._for(stmt, values)
            case ir.If(cond, body, orelse):
                self.block(body if self.value(cond, values) else orelse, values)
            case ir.Let(name, _, value) | ir.Declare(name, _, value) | ir.Assign(name, value):
                values[name] = self.value(value, values)
            case ir.Store(buffer, index, value):
                self.memory.store(buffer, int(self.value(index, values)), self.value(value, values))
            case ir.Accumulate(buffer, index, value):
                start, added = int(self.value(index, values)), self.value(value, values)
                old = self.memory.load(buffer, start, np.size(added))
                self.memory.store(buffer, start, old + added)
            case ir.Alloc(name, scalar, size):
                count = size if isinstance(size, int) else int(self.value(size, values))
                self.memory.alloc(name, count, ir.DTYPES[scalar])
            case ir.Multiply():
                type, left = self.memory.type(stmt.c.buffer), self.memory.type(stmt.a.buffer)
                self._stmt(lower_product(stmt, type, left, {*values, *self.memory.names()}), values)
            case ir.Prefetch():
                pass

    def _for(self, loop: ir.For, values: dict[str, Any]) -> None:
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

    def value(self, expr: ir.Expr, values: Mapping[str, Any]) -> Any:
        """Evaluate an expression to a NumPy scalar, or to an array of lanes."""
        match expr:
            case ir.Const(value, type):
                return ir.DTYPES[type.scalar](value)
            case ir.Ref(name):
                return values[name]
            case ir.Load(buffer, index, lanes):
                return self.memory.load(buffer, int(self.value(index, values)), lanes)
            case ir.Binary("and" | "or" as op, a, b) if np.ndim(left := self.value(a, values)) == 0:
                return left if bool(left) == (op == "or") else self.value(b, values)
            case ir.Binary(op, a, b):
                return _BINARY[op](self.value(a, values), self.value(b, values))
            case ir.Unary(op, a):
                operand = self.value(a, values)
                return np.negative(operand) if op == "-" else np.logical_not(operand)
            case ir.Broadcast(a, lanes):
                return np.full(lanes, self.value(a, values)) if lanes > 1 else self.value(a, values)
            case ir.Sum(a):
                return _sum(self.value(a, values))
            case ir.Cast(type, a):
                return _cast(expr, type, self.value(a, values))
            case ir.Select(cond, a, b):
                chosen = self.value(cond, values)
                if np.ndim(chosen) == 0:
                    return self.value(a if chosen else b, values)
                return np.where(chosen, self.value(a, values), self.value(b, values))
            case ir.Call(name, (a,)):
                operand = self.value(a, values)
                return _CALLS[name](operand).astype(operand.dtype)
        raise IllegalSchedule(f"{expr!r} is not an expression of the IR")


def _cast(expr: ir.Cast, type: ir.Type, value: Any) -> Any:
    if value.dtype == np.uint16 and type == ir.F32:
        return widened(value)
    if type == ir.BF16:
        return value if value.dtype == np.uint16 else rounded(value)
    found = value.astype(ir.DTYPES[type.scalar])
    if type in (ir.U8, ir.I8) and np.any(found != value):
        raise OverflowError(f"{ir.pretty_expr(expr)} is {value}, outside the range of {type}")
    return found


def rounded(values: np.ndarray) -> np.ndarray:
    """Round numbers of f32 to the nearest of bf16, ties to even; NaN stays NaN. Returns their bits."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    found = np.where(np.isnan(values), bits >> 16 | 0x40, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return found.astype(np.uint16)[()]


def widened(bits: np.ndarray) -> np.ndarray:
    """Return the numbers of f32 that bits of bf16 stand for."""
    return (np.asarray(bits, np.uint32) << np.uint32(16)).view(np.float32)[()]


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
    "exp2": np.exp2,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "abs": np.abs,
}


_NONE, _SEVERAL = -1, -2


@dataclass
class _Marks:
    """The iterations of the parallel loop that read and wrote each element of one array."""

    reader: np.ndarray
    writer: np.ndarray


@dataclass
class _Region:
    """A running parallel loop; `order` numbers its iterations from 0."""

    loop: str
    private: set[str] = field(default_factory=set)  # arrays allocated by an iteration
    order: int = -1
    iterations: list[int] = field(default_factory=list)
    marks: dict[str, _Marks] = field(default_factory=dict)


class _Memory:
    """Arrays by name, with checks of bounds, initialisation and races; at most one parallel region at a time."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._stored: dict[str, np.ndarray] = {}
        self._region: _Region | None = None

    def bind(self, name: str, array: Any, dtype: type[np.generic]) -> None:
        """Bind a name to a flat view of an array."""
        if not isinstance(array, np.ndarray) or array.dtype != dtype or not array.flags.c_contiguous:
            raise TypeError(f"argument {name} is not a C-contiguous NumPy array of {np.dtype(dtype)}")
        self._arrays[name] = array.reshape(-1)

    def names(self) -> set[str]:
        """Return the names of all arrays."""
        return set(self._arrays)

    def type(self, name: str) -> ir.Type:
        """Return the element type of an array."""
        return next(ir.Type(scalar) for scalar, dtype in ir.DTYPES.items() if self._arrays[name].dtype == dtype)

    def alloc(self, name: str, size: int, dtype: type[np.generic]) -> None:
        """Allocate a local array; replaces an array of the same name."""
        self._arrays[name] = np.zeros(size, dtype)
        self._stored[name] = np.zeros(size, bool)
        if self._region is not None:
            self._region.private.add(name)

    def load(self, name: str, index: int, lanes: int) -> Any:
        """Load a scalar, or a copy of `lanes` elements."""
        where = self._slice(name, index, lanes)
        if name in self._stored and not self._stored[name][where].all():
            raise ValueError(f"load of {name}[{index}; {lanes}], which was never stored")
        self._mark(name, where, writes=False)
        return self._arrays[name][index] if lanes == 1 else self._arrays[name][where].copy()

    def store(self, name: str, index: int, value: Any) -> None:
        """Store a scalar, or a vector that starts at `index`."""
        where = self._slice(name, index, np.size(value))
        self._mark(name, where, writes=True)
        self._arrays[name][where] = value
        if name in self._stored:
            self._stored[name][where] = True

    def fork(self, loop: str) -> None:
        """Begin a parallel loop; arrays allocated inside are private to an iteration."""
        self._region = _Region(loop)

    def enter(self, iteration: int) -> None:
        """Begin an iteration of the parallel loop."""
        assert self._region is not None
        self._region.order += 1
        self._region.iterations.append(iteration)

    def join(self) -> None:
        """End the parallel loop."""
        self._region = None

    def _slice(self, name: str, index: int, lanes: int) -> slice:
        size = self._arrays[name].size
        if index < 0 or index + lanes > size:
            raise IndexError(f"access to {name}[{index}; {lanes}], which has {size} elements")
        return slice(index, index + lanes)

    def _mark(self, name: str, where: slice, *, writes: bool) -> None:
        region = self._region
        if region is None or name in region.private:
            return
        if name not in region.marks:
            size = self._arrays[name].size
            region.marks[name] = _Marks(np.full(size, _NONE), np.full(size, _NONE))
        marks, me = region.marks[name], region.order
        clash = (marks.writer[where] != _NONE) & (marks.writer[where] != me)
        if writes:
            clash |= (marks.reader[where] != _NONE) & (marks.reader[where] != me)
        if clash.any():
            now, element = region.iterations[me], where.start + int(np.argmax(clash))
            raise IllegalSchedule(
                f"iteration {now} of parallel loop {region.loop} {'writes' if writes else 'reads'} {name}[{element}], "
                f"which another iteration {'reads or writes' if writes else 'writes'}"
            )
        if writes:
            marks.writer[where] = me
        else:
            readers = marks.reader[where]
            marks.reader[where] = np.where((readers == _NONE) | (readers == me), me, _SEVERAL)
