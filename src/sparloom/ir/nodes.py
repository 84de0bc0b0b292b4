"""Nodes of the loop IR, a walk over them, and their text form.

kernel  := Kernel(name, param*, stmt*)
param   := Param(name, type, buffer?, const?)       buffers are dense, one-dimensional and do not overlap; other
                                                    parameters are immutable scalars
type    := Type(scalar, lanes)                      scalar: i32 i64 f32 f64 bool, and bf16 u8 i8 in buffers;
                                                    lanes: 1, or 2 to 64 (power of two)

stmt    := For(var, lo, hi, stmt*, kind, step, chunk, name*)
         | If(expr, stmt*, stmt*)
         | Let(name, type, expr)                    immutable from here to the end of the block
         | Declare(name, type, expr)                mutable from here to the end of the block
         | Assign(name, expr)                       to a declared name
         | Store(buffer, expr, expr)                buffer[index] = value, with an element for each lane of the value
         | Accumulate(buffer, expr, expr)           buffer[index] += value
         | Alloc(name, scalar, size)                array local to the block, uninitialised; size: int or i64 expression
         | Multiply(view, view, view, rows, cols, depth, add)    C = A B, or C += A B: a dense product of tiles
         | Prefetch(buffer, expr)                   only affects speed; the index may be out of bounds

expr    := Const(value, type) | Ref(name)
         | Load(buffer, expr, lanes)                consecutive elements starting at index, which need not be aligned
         | Binary(op, expr, expr) | Unary(op, expr)
         | Broadcast(expr, lanes) | Sum(expr)       copy a value to all lanes; sum the lanes, by halves
         | Cast(type, expr) | Select(expr, expr, expr) | Call(name, expr*)

view    := View(buffer, at, row, col)               a matrix: element (r, c) is buffer[at + r * row + c * col]

kind    := serial | parallel | shared | simd | unrolled
op      := + - * / // % min max < <= > >= == != and or         binary
         | - not                                               unary

Types: Both operands of a Binary have the same type; there are no implicit conversions. `/` divides floats; `//` and `%`
divide integers and round toward zero as in C. Elements of bf16 are only cast from and to f32, rounded to the nearest
number, ties to even; those of u8 and i8 from and to i32, within their range. On scalars, `and`, `or` and Select
evaluate only the operands they need. Comparisons yield bool with the lanes of their operands. `a min b` is a if a < b,
else b; `a max b` is a if a > b, else b.

Loops: Bounds are i64 and evaluated once on entry; the variable is i64 and steps from lo while below hi. Iterations of a
parallel loop run concurrently in any order and are scheduled dynamically in chunks of `chunk`. A shared loop is
directly inside a parallel one, and distributes the work of one iteration over a thread block: its iterations run
concurrently in any order, and all of them complete before the next statement. Iterations of a simd loop run side by
side; the names that it `reduces` are declared scalars that it only adds to, or takes the minimum or maximum of, in any
order. Multiply also sums in any order; the columns of B and C are contiguous (col = 1), and C is a different buffer
from A and B. Of bf16, and of u8 by i8, it computes f32 and i32. Then columns of A are contiguous, the depth is a
multiple of g = 2 or 4, and every g rows of B are interleaved (col = g): element (k, c) is
buffer[at + k // g * row + c * g + k % g].

Undefined behaviour: overflow, races, accesses out of bounds, and reads of uninitialised elements.

Where an i64 expression is expected (bounds, indices, operands of + - * // %), a Python int stands for its constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

Scalar = Literal["i32", "i64", "f32", "f64", "bool", "bf16", "u8", "i8"]
Kind = Literal["serial", "parallel", "shared", "simd", "unrolled"]
DTYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64, "bool": np.bool_,
          "bf16": np.uint16, "u8": np.uint8, "i8": np.int8}
"""NumPy type of each scalar type; NumPy has none for bf16, so arrays hold its bits."""

STORED_AS = {"bf16": "f32", "u8": "i32", "i8": "i32"}
"""Scalar types in memory only -> the type that is cast from and to them."""

PRODUCTS = {("f32", "f32"): "f32", ("f64", "f64"): "f64", ("bf16", "bf16"): "f32", ("u8", "i8"): "i32"}
"""Types of the operands of Multiply -> type of the result."""

_LEVELS = {
    "or": 1, "and": 2, "<": 4, "<=": 4, ">": 4, ">=": 4, "==": 4, "!=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6,
    "%": 6,
}
_NOT, _NEGATIVE, _PRIMARY = 3, 7, 8


@dataclass(frozen=True)
class Type:
    """A scalar type, or a vector of `lanes` of them."""

    scalar: Scalar
    lanes: int = 1

    def __str__(self) -> str:
        return self.scalar if self.lanes == 1 else f"{self.scalar}x{self.lanes}"


I32 = Type("i32")
"""32-bit integers."""
I64 = Type("i64")
"""64-bit integers."""
F32 = Type("f32")
"""Single precision."""
F64 = Type("f64")
"""Double precision."""
BOOL = Type("bool")
"""Conditions."""
BF16 = Type("bf16")
"""The upper half of a number of single precision, in memory only."""
U8 = Type("u8")
"""Bytes, in memory only."""
I8 = Type("i8")
"""Signed bytes, in memory only."""


class _Node:
    """Base class of nodes.

    Args:
        integers: fields in which a Python int becomes an i64 constant.
        tuples: fields that accept any iterable.
    """

    _integers: ClassVar[tuple[str, ...]] = ()
    _tuples: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, integers: tuple[str, ...] = (), tuples: tuple[str, ...] = ()) -> None:
        cls._integers, cls._tuples = integers, tuples

    def __post_init__(self) -> None:
        for field in self._integers:
            value = getattr(self, field)
            if isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, field, Const(value, I64))
        for field in self._tuples:
            object.__setattr__(self, field, tuple(getattr(self, field)))


def _operator(op: str) -> Callable[[Expr, Expr | int], Binary]:
    return lambda self, other: Binary(op, self, other)


def _reflected(op: str) -> Callable[[Expr, int], Binary]:
    return lambda self, other: Binary(op, other, self)


class Expr(_Node):
    """Base class of expressions; arithmetic operators build Binary nodes."""

    __add__, __radd__ = _operator("+"), _reflected("+")
    __sub__, __rsub__ = _operator("-"), _reflected("-")
    __mul__, __rmul__ = _operator("*"), _reflected("*")
    __truediv__ = _operator("/")
    __floordiv__ = _operator("//")
    __mod__ = _operator("%")


class Stmt(_Node):
    """Base class of statements."""


@dataclass(frozen=True)
class Const(Expr):
    """Hold a constant."""

    value: float | int | bool
    type: Type = I64


@dataclass(frozen=True)
class Ref(Expr):
    """Read a variable."""

    name: str


@dataclass(frozen=True)
class Load(Expr, integers=("index",)):
    """Read an element of a buffer, or several neighbours as a vector."""

    buffer: str
    index: Expr
    lanes: int = 1


@dataclass(frozen=True)
class Binary(Expr, integers=("a", "b")):
    """Apply an operator to two values; `op` as in the grammar above."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True)
class Unary(Expr):
    """Apply an operator to one value."""

    op: str
    a: Expr


@dataclass(frozen=True)
class Broadcast(Expr):
    """Repeat a scalar in all lanes of a vector."""

    a: Expr
    lanes: int


@dataclass(frozen=True)
class Sum(Expr):
    """Add the lanes of a vector."""

    a: Expr


@dataclass(frozen=True)
class Cast(Expr):
    """Convert a value to another type."""

    type: Type
    a: Expr


@dataclass(frozen=True)
class Select(Expr, integers=("a", "b")):
    """Choose one of two values; both are computed."""

    cond: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True)
class Call(Expr, tuples=("args",)):
    """name: sqrt, exp, exp2, log, tanh, erf or abs."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class For(Stmt, integers=("lo", "hi"), tuples=("body", "reduces")):
    """Run the body for each value of `var` from `lo` to below `hi`."""

    var: str
    lo: Expr
    hi: Expr
    body: tuple[Stmt, ...]
    kind: Kind = "serial"
    step: int = 1
    chunk: int | None = None
    reduces: tuple[str, ...] = ()


@dataclass(frozen=True)
class If(Stmt, tuples=("body", "orelse")):
    """Run one of two bodies."""

    cond: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Let(Stmt, integers=("value",)):
    """Name a value that does not change."""

    name: str
    type: Type
    value: Expr


@dataclass(frozen=True)
class Declare(Stmt, integers=("value",)):
    """Declare a variable that statements may set."""

    name: str
    type: Type
    value: Expr


@dataclass(frozen=True)
class Assign(Stmt, integers=("value",)):
    """Set a variable that `Declare` made."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Store(Stmt, integers=("index", "value")):
    """Write an element of a buffer."""

    buffer: str
    index: Expr
    value: Expr


@dataclass(frozen=True)
class Accumulate(Stmt, integers=("index", "value")):
    """Add a value to an element of a buffer."""

    buffer: str
    index: Expr
    value: Expr


@dataclass(frozen=True)
class Alloc(Stmt):
    """Declare a local array."""

    name: str
    scalar: Scalar
    size: int | Expr


@dataclass(frozen=True)
class View(Expr, integers=("at", "row", "col")):
    """A matrix in a buffer; occurs only in Multiply."""

    buffer: str
    at: Expr
    row: Expr
    col: Expr


@dataclass(frozen=True)
class Multiply(Stmt, integers=("rows", "cols", "depth")):
    """c (rows, cols) = a (rows, depth) b (depth, cols), or c += a b if `add`."""

    c: View
    a: View
    b: View
    rows: Expr
    cols: Expr
    depth: Expr
    add: Expr


def interleaved_rows(scalar: Scalar) -> int:
    """Return how many rows of B are interleaved in a Multiply, by the type of A or B."""
    return {"bf16": 2, "u8": 4, "i8": 4}.get(scalar, 1)


@dataclass(frozen=True)
class Prefetch(Stmt, integers=("index",)):
    """Ask the cache for an element of a buffer."""

    buffer: str
    index: Expr


@dataclass(frozen=True)
class Param:
    """A buffer, which is only read if it is `const`, or a scalar."""

    name: str
    type: Type
    buffer: bool = False
    const: bool = True


@dataclass(frozen=True)
class Kernel(_Node, tuples=("params", "body")):
    """Define a function of buffers and scalars."""

    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]


Body = tuple[Stmt, ...]


def walk(root: Kernel | Stmt | Expr | Body) -> Iterator[Stmt | Expr]:
    """Yield every statement and expression under `root`, outer before inner, in program order."""
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            pending += node[::-1]
        elif isinstance(node, Kernel):
            pending.append(node.body)
        elif isinstance(node, (Const, Ref)):
            yield node
        else:
            yield node
            for name in reversed(field_names(type(node))):
                value = getattr(node, name)
                if isinstance(value, (Expr, tuple)) and name != "reduces":
                    pending.append(value)


@cache
def field_names(kind: type[Stmt | Expr]) -> tuple[str, ...]:
    """List the fields of a kind of node."""
    return tuple(field.name for field in fields(kind))


def pretty(kernel: Kernel) -> str:
    """Print a kernel, whether it verifies or not, with one statement per line.

    Constants other than i64 and f32 show their type; `B[b; 16]` is a vector of 16 elements that starts at index b.
    """
    params = ", ".join(_param(param) for param in kernel.params)
    return "\n".join([f"kernel {kernel.name}({params}):", *_block(kernel.body, 1)]) + "\n"


def pretty_expr(expr: Expr) -> str:
    """Print an expression."""
    return _text(expr)


def _param(param: Param) -> str:
    return f"{param.name}: {'' if param.const else 'mut '}{param.type}{'[]' if param.buffer else ''}"


def _block(body: tuple[Stmt, ...], depth: int) -> list[str]:
    lines = [line for stmt in body for line in _stmt(stmt, depth)]
    return lines or ["    " * depth + "pass"]


def _stmt(stmt: Stmt, depth: int) -> list[str]:
    indent = "    " * depth
    match stmt:
        case For():
            return [indent + _head(stmt), *_block(stmt.body, depth + 1)]
        case If(cond, body, orelse):
            lines = [f"{indent}if {_text(cond)}:", *_block(body, depth + 1)]
            return lines + ([f"{indent}else:", *_block(orelse, depth + 1)] if orelse else [])
        case Let(name, type, value) | Declare(name, type, value):
            return [f"{indent}{'let' if isinstance(stmt, Let) else 'var'} {name}: {type} = {_text(value)}"]
        case Assign(name, value):
            return [f"{indent}{name} = {_text(value)}"]
        case Store(buffer, index, value) | Accumulate(buffer, index, value):
            return [f"{indent}{buffer}[{_text(index)}] {'=' if isinstance(stmt, Store) else '+='} {_text(value)}"]
        case Alloc(name, scalar, size):
            length = size if isinstance(size, int) else _text(size)
            return [f"{indent}array {name}: {scalar}[{length}]"]
        case Multiply(c, a, b, rows, cols, depth, add):
            sign = {Const(False, BOOL): "=", Const(True, BOOL): "+="}.get(add, f"+= if {_text(add)} else =")
            shape = f"{_text(rows)} x {_text(cols)}, depth {_text(depth)}"
            return [f"{indent}{_text(c)} {sign} {_text(a)} {_text(b)}    ({shape})"]
        case Prefetch(buffer, index):
            return [f"{indent}prefetch {buffer}[{_text(index)}]"]
    raise TypeError(f"{stmt!r} is not a statement of the IR")


def _head(loop: For) -> str:
    kind = "" if loop.kind == "serial" else f"{loop.kind} "
    step = "" if loop.step == 1 else f" step {loop.step}"
    chunk = "" if loop.chunk is None else f" chunk {loop.chunk}"
    reduces = f" reduces {', '.join(loop.reduces)}" if loop.reduces else ""
    return f"{kind}for {loop.var} in {_text(loop.lo)} .. {_text(loop.hi)}{step}{chunk}{reduces}:"


def _text(expr: Expr, level: int = 0) -> str:
    text, own = _print(expr)
    return text if own >= level else f"({text})"


def _print(expr: Expr) -> tuple[str, int]:
    match expr:
        case Const(value, type):
            number = str(value) if type in (I64, F32) else str(value).lower() if type == BOOL else f"{value}:{type}"
            return number, _NEGATIVE if number.startswith("-") else _PRIMARY
        case Ref(name):
            return name, _PRIMARY
        case Load(buffer, index, lanes):
            return f"{buffer}[{_text(index)}{'' if lanes == 1 else f'; {lanes}'}]", _PRIMARY
        case Binary(op, a, b) if op in ("min", "max"):
            return f"{op}({_text(a)}, {_text(b)})", _PRIMARY
        case Binary(op, a, b):
            level = _LEVELS[op]
            return f"{_text(a, level + (level == _LEVELS['<']))} {op} {_text(b, level + 1)}", level
        case Unary(op, a):
            level = _NOT if op == "not" else _NEGATIVE
            return f"{'not ' if op == 'not' else '-'}{_text(a, level + 1)}", level
        case Broadcast(a, lanes):
            return f"broadcast({_text(a)}, {lanes})", _PRIMARY
        case Sum(a):
            return f"sum({_text(a)})", _PRIMARY
        case Cast(type, a):
            return f"{type}({_text(a)})", _PRIMARY
        case Select(cond, a, b):
            return f"select({_text(cond)}, {_text(a)}, {_text(b)})", _PRIMARY
        case View(buffer, at, row, col):
            return f"{buffer}[{_text(at)} + ({_text(row)}, {_text(col)})]", _PRIMARY
        case Call(name, args):
            return f"{name}({', '.join(_text(arg) for arg in args)})", _PRIMARY
    raise TypeError(f"{expr!r} is not an expression of the IR")
