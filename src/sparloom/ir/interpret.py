"""The interpreter: defines the meaning of kernels in NumPy, and detects races and accesses out of bounds."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.ir import nodes as ir
from sparloom.ir.transform import COMPARISONS, lower_product
from sparloom.ir.verify import verify

Values = dict[str, Any]
Step = Callable[[Values], None]
Evaluation = Callable[[Values], Any]
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
        _Machine(memory).block(kernel.body)(values)


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
    """Turns statements and expressions into functions of the values in scope, each once, however often it runs."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory

    def block(self, body: tuple[ir.Stmt, ...]) -> Step:
        """Make a function that runs a block; names that it declares go out of scope at its end."""
        steps = [self._step(stmt) for stmt in body]
        declared = [stmt.name for stmt in body if isinstance(stmt, (ir.Let, ir.Declare))]

        def run(values: Values) -> None:
            for step in steps:
                step(values)
            for name in declared:
                del values[name]

        return run

    def _step(self, stmt: ir.Stmt) -> Step:
        match stmt:
            case ir.For():
                return self._for(stmt)
            case ir.If(cond, body, orelse):
                return self._if(self.evaluation(cond), self.block(body), self.block(orelse))
            case ir.Let(name, _, value) | ir.Declare(name, _, value) | ir.Assign(name, value):
                return self._let(name, self.evaluation(value))
            case ir.Store(buffer, index, value):
                return self._store(buffer, self.evaluation(index), self.evaluation(value))
            case ir.Accumulate(buffer, index, value):
                return self._accumulate(buffer, self.evaluation(index), self.evaluation(value))
            case ir.Alloc(name, scalar, size):
                count = (lambda values: size) if isinstance(size, int) else self.evaluation(size)
                return lambda values: self.memory.alloc(name, int(count(values)), ir.DTYPES[scalar])
            case ir.Multiply():
                return self._multiply(stmt)
            case ir.Prefetch():
                return lambda values: None
        raise IllegalSchedule(f"{stmt!r} is not a statement of the IR")

    def _if(self, cond: Evaluation, body: Step, orelse: Step) -> Step:
        return lambda values: (body if cond(values) else orelse)(values)

    def _let(self, name: str, value: Evaluation) -> Step:
        def run(values: Values) -> None:
            values[name] = value(values)

        return run

    def _store(self, buffer: str, index: Evaluation, value: Evaluation) -> Step:
        return lambda values: self.memory.store(buffer, int(index(values)), value(values))

    def _accumulate(self, buffer: str, index: Evaluation, value: Evaluation) -> Step:
        def run(values: Values) -> None:
            start, added = int(index(values)), value(values)
            old = self.memory.load(buffer, start, np.size(added))
            self.memory.store(buffer, start, old + added)

        return run

    def _multiply(self, stmt: ir.Multiply) -> Step:
        """Make a function that runs the loops of a product; types of arrays are known when it first runs."""
        loops: list[Step] = []

        def run(values: Values) -> None:
            if not loops:
                type, left = self.memory.type(stmt.c.buffer), self.memory.type(stmt.a.buffer)
                loops.append(self._step(lower_product(stmt, type, left, {*values, *self.memory.names()})))
            loops[0](values)

        return run

    def _for(self, loop: ir.For) -> Step:
        first, last, body = self.evaluation(loop.lo), self.evaluation(loop.hi), self.block(loop.body)
        memory, name, parallel = self.memory, loop.var, loop.kind == "parallel"

        def run(values: Values) -> None:
            lo, hi = int(first(values)), int(last(values))
            if parallel:
                memory.fork(name)
            for iteration in range(lo, hi, loop.step):
                if parallel:
                    memory.enter(iteration)
                values[name] = np.int64(iteration)
                body(values)
            values.pop(name, None)
            if parallel:
                memory.join()

        return run

    def evaluation(self, expr: ir.Expr) -> Evaluation:
        """Make a function that evaluates an expression to a NumPy scalar, or to an array of lanes."""
        match expr:
            case ir.Const(value, type):
                constant = ir.DTYPES[type.scalar](value)
                return lambda values: constant
            case ir.Ref(name):
                return operator.itemgetter(name)
            case ir.Load(buffer, index, lanes):
                load, place = self.memory.load, self.evaluation(index)
                return lambda values: load(buffer, int(place(values)), lanes)
            case ir.Binary(op, a, b):
                return self._binary(op, self.evaluation(a), self.evaluation(b))
            case ir.Unary(op, a):
                apply = np.negative if op == "-" else np.logical_not
                return _applied(apply, self.evaluation(a))
            case ir.Broadcast(a, lanes):
                return _applied(lambda value: np.full(lanes, value) if lanes > 1 else value, self.evaluation(a))
            case ir.Sum(a):
                return _applied(_sum, self.evaluation(a))
            case ir.Cast(type, a):
                return _applied(lambda value: _cast(expr, type, value), self.evaluation(a))
            case ir.Select(cond, a, b):
                return self._select(*map(self.evaluation, (cond, a, b)))
            case ir.Call(name, (a,)):
                apply = _CALLS[name]
                return _applied(lambda value: apply(value).astype(value.dtype), self.evaluation(a))
        raise IllegalSchedule(f"{expr!r} is not an expression of the IR")

    def _binary(self, op: str, a: Evaluation, b: Evaluation) -> Evaluation:
        apply = _BINARY[op]
        if op not in ("and", "or"):
            return lambda values: apply(a(values), b(values))

        def run(values: Values) -> Any:
            left = a(values)
            if np.ndim(left) == 0:
                return left if bool(left) == (op == "or") else b(values)
            return apply(left, b(values))

        return run

    def _select(self, cond: Evaluation, a: Evaluation, b: Evaluation) -> Evaluation:
        def run(values: Values) -> Any:
            chosen = cond(values)
            if np.ndim(chosen) == 0:
                return (a if chosen else b)(values)
            return np.where(chosen, a(values), b(values))

        return run


def _applied(apply: Callable[[Any], Any], operand: Evaluation) -> Evaluation:
    return lambda values: apply(operand(values))


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
    if np.ndim(a) == 0 and a >= 0 and b > 0:
        return a // b
    if np.any(b == 0):
        raise ZeroDivisionError("integer divided by zero")
    return (np.abs(a) // np.abs(b) * (np.sign(a) * np.sign(b))).astype(a.dtype)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": _quotient,
    "%": lambda a, b: a - _quotient(a, b) * b,
    "min": lambda a, b: _choose(a < b, a, b),
    "max": lambda a, b: _choose(a > b, a, b),
    **COMPARISONS,
    "and": np.logical_and,
    "or": np.logical_or,
}


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
        array, where = self._arrays[name], self._place(name, index, lanes)
        stored = self._stored.get(name)
        if stored is not None and not (stored[index] if lanes == 1 else stored[where].all()):
            raise ValueError(f"load of {name}[{index}; {lanes}], which was never stored")
        self._record_access(name, index, lanes, writes=False)
        return array[index] if lanes == 1 else array[where].copy()

    def store(self, name: str, index: int, value: Any) -> None:
        """Store a scalar, or a vector that starts at `index`."""
        lanes = np.size(value)
        where = self._place(name, index, lanes)
        self._record_access(name, index, lanes, writes=True)
        self._arrays[name][where] = value
        stored = self._stored.get(name)
        if stored is not None:
            stored[where] = True

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

    def _place(self, name: str, index: int, lanes: int) -> int | slice:
        size = self._arrays[name].size
        if index < 0 or index + lanes > size:
            raise IndexError(f"access to {name}[{index}; {lanes}], which has {size} elements")
        return index if lanes == 1 else slice(index, index + lanes)

    def _record_access(self, name: str, index: int, lanes: int, *, writes: bool) -> None:
        region = self._region
        if region is None or name in region.private:
            return
        marks, me = region.marks.get(name), region.order
        if marks is None:
            size = self._arrays[name].size
            marks = region.marks[name] = _Marks(np.full(size, _NONE), np.full(size, _NONE))
        if lanes == 1:  # as below, without arrays: most accesses are of one element
            writer, reader = marks.writer[index], marks.reader[index]
            if (writer not in (_NONE, me)) or (writes and reader not in (_NONE, me)):
                self._report_race(name, index, writes=writes)
            if writes:
                marks.writer[index] = me
            else:
                marks.reader[index] = me if reader in (_NONE, me) else _SEVERAL
            return
        writers, readers = (each[index : index + lanes] for each in (marks.writer, marks.reader))
        clash = (writers != _NONE) & (writers != me)
        if writes:
            clash |= (readers != _NONE) & (readers != me)
        if clash.any():
            self._report_race(name, index + int(np.argmax(clash)), writes=writes)
        if writes:
            writers[:] = me
        else:
            readers[:] = np.where((readers == _NONE) | (readers == me), me, _SEVERAL)

    def _report_race(self, name: str, element: int, *, writes: bool) -> NoReturn:
        region = self._region
        assert region is not None
        raise IllegalSchedule(
            f"iteration {region.iterations[region.order]} of parallel loop {region.loop} "
            f"{'writes' if writes else 'reads'} {name}[{element}], "
            f"which another iteration {'reads or writes' if writes else 'writes'}"
        )
