"""Nodes of the loop IR, and functions that walk over them and rewrite them.

kernel  := Kernel(name, param*, stmt*)
param   := Param(name, type, buffer?, const?)       buffers are dense, one-dimensional and do not overlap; other
                                                    parameters are immutable scalars
type    := Type(scalar, lanes)                      scalar: i32 i64 f32 f64 bool; lanes: 1, or 2 to 64 (power of two)

stmt    := For(var, lo, hi, stmt*, kind, step, chunk, name*)
         | If(expr, stmt*, stmt*)
         | Let(name, type, expr)                    immutable from here to the end of the block
         | Declare(name, type, expr)                mutable from here to the end of the block
         | Assign(name, expr)                       to a declared name
         | Store(buffer, expr, expr)                buffer[index] = value; writes as many elements as the value has
         lanes | Accumulate(buffer, expr, expr)           buffer[index] += value | Alloc(name, scalar, size)
         array local to the block, uninitialised; the size is an int or an
                                                    i64 expression
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
divide integers and round toward zero as in C. On scalars, `and`, `or` and Select evaluate only the operands they need.
Comparisons yield bool with the lanes of their operands. `a min b` is a if a < b, else b; `a max b` is a if a > b, else
b.

Loops: Bounds are i64 and evaluated once on entry; the variable is i64 and steps from lo while below hi. Iterations of a
parallel loop run concurrently in any order and are scheduled dynamically in chunks of `chunk`. A shared loop is
directly inside a parallel one, and distributes the work of one iteration over a thread block: its iterations run
concurrently in any order, and all of them complete before the next statement. Iterations of a simd loop run side by
side; the names that it `reduces` are declared scalars that it only adds to, or takes the minimum or maximum of, in any
order. Multiply also sums in any order; the columns of B and C are contiguous (col = 1), and C is a different buffer
from A and B.

Undefined behaviour: overflow, races, accesses out of bounds, and reads of uninitialised elements.

Where an i64 expression is expected (bounds, indices, operands of + - * // %), a Python int stands for its constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import ClassVar, Literal, TypeVar

import numpy as np

__all__ = [
    "BOOL", "DTYPES", "F32", "F64", "I32", "I64", "Accumulate", "Alloc", "Assign", "Binary", "Body", "Broadcast",
    "Call", "Cast", "Const", "Declare", "Expr", "For", "If", "Kernel", "Let", "Load", "Multiply", "Param",
    "Prefetch", "Ref", "Scalar", "Select", "Stmt", "Store", "Sum", "Type", "Unary", "View", "declarations",
    "declared", "fresh", "rebuild", "rename", "replace_refs", "walk",
]

Scalar = Literal["i32", "i64", "f32", "f64", "bool"]
Kind = Literal["serial", "parallel", "shared", "simd", "unrolled"]


@dataclass(frozen=True)
class Type:
    """A scalar type, or a vector of `lanes` of them."""

    scalar: Scalar
    lanes: int = 1

    def __str__(self) -> str:
        return self.scalar if self.lanes == 1 else f"{self.scalar}x{self.lanes}"


I32, I64, F32, F64, BOOL = Type("i32"), Type("i64"), Type("f32"), Type("f64"), Type("bool")
DTYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64, "bool": np.bool_}


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
    value: float | int | bool
    type: Type = I64


@dataclass(frozen=True)
class Ref(Expr):
    name: str


@dataclass(frozen=True)
class Load(Expr, integers=("index",)):
    buffer: str
    index: Expr
    lanes: int = 1


@dataclass(frozen=True)
class Binary(Expr, integers=("a", "b")):
    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True)
class Unary(Expr):
    op: str
    a: Expr


@dataclass(frozen=True)
class Broadcast(Expr):
    a: Expr
    lanes: int


@dataclass(frozen=True)
class Sum(Expr):
    a: Expr


@dataclass(frozen=True)
class Cast(Expr):
    type: Type
    a: Expr


@dataclass(frozen=True)
class Select(Expr, integers=("a", "b")):
    cond: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True)
class Call(Expr, tuples=("args",)):
    """name: sqrt, exp, log, tanh, erf or abs."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class For(Stmt, integers=("lo", "hi"), tuples=("body", "reduces")):
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
    cond: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Let(Stmt, integers=("value",)):
    name: str
    type: Type
    value: Expr


@dataclass(frozen=True)
class Declare(Stmt, integers=("value",)):
    name: str
    type: Type
    value: Expr


@dataclass(frozen=True)
class Assign(Stmt, integers=("value",)):
    name: str
    value: Expr


@dataclass(frozen=True)
class Store(Stmt, integers=("index", "value")):
    buffer: str
    index: Expr
    value: Expr


@dataclass(frozen=True)
class Accumulate(Stmt, integers=("index", "value")):
    buffer: str
    index: Expr
    value: Expr


@dataclass(frozen=True)
class Alloc(Stmt):
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


@dataclass(frozen=True)
class Prefetch(Stmt, integers=("index",)):
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
    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]


Body = tuple[Stmt, ...]
Node = TypeVar("Node", Expr, Stmt)


def rebuild(node: Node, *, expr: Callable[[Expr], Expr], body: Callable[[Body], Body]) -> Node:
    """Copy `node` with `expr` applied to its direct expressions and `body` to its direct bodies."""
    changed = {}
    for name in _field_names(type(node)):
        value = getattr(node, name)
        if isinstance(value, Expr):
            changed[name] = expr(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Expr):
            changed[name] = tuple(expr(each) for each in value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Stmt):
            changed[name] = body(value)
    return replace(node, **changed) if changed else node


def walk(root: Kernel | Stmt | Expr | Body) -> Iterator[Stmt | Expr]:
    """Yield every statement and expression under `root`, outer before inner, in program order."""
    if isinstance(root, Kernel):
        yield from walk(root.body)
    elif isinstance(root, tuple):
        for each in root:
            yield from walk(each)
    else:
        yield root
        for name in _field_names(type(root)):
            value = getattr(root, name)
            if isinstance(value, (Expr, tuple)) and name != "reduces":
                yield from walk(value)


@cache
def _field_names(kind: type[Stmt | Expr]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def declarations(kernel: Kernel) -> Counter[str]:
    """Count how often each name is declared, as a parameter, loop variable, value or array."""
    found = Counter(param.name for param in kernel.params)
    for node in walk(kernel):
        if isinstance(node, For):
            found[node.var] += 1
        elif isinstance(node, (Let, Declare, Alloc)):
            found[node.name] += 1
    return found


def declared(body: Body) -> tuple[str, ...]:
    """List the names that the statements of `body` declare at its own level."""
    return tuple(stmt.name for stmt in body if isinstance(stmt, (Let, Declare, Alloc)))


def fresh(name: str, taken: set[str]) -> str:
    """Return `name`, with the first suffix _1, _2, ... that makes it unique if needed, and add it to `taken`."""
    chosen, number = name, 0
    while chosen in taken:
        number += 1
        chosen = f"{name}_{number}"
    taken.add(chosen)
    return chosen


def replace_refs(body: Body, values: dict[str, Expr]) -> Body:
    """Replace names by expressions; the caller ensures that `body` declares none of the names in them."""

    def in_expr(expr: Expr) -> Expr:
        if isinstance(expr, Ref):
            return values.get(expr.name, expr)
        return rebuild(expr, expr=in_expr, body=in_body)

    def in_body(inner: Body) -> Body:
        return tuple(rebuild(stmt, expr=in_expr, body=in_body) for stmt in inner)

    return in_body(body)


def rename(body: Body, new: dict[str, str]) -> Body:
    """Rename values, buffers and arrays where they are declared and used."""

    def in_fields(node: Node) -> Node:
        node = rebuild(node, expr=in_fields, body=in_body)
        changed = {
            field: new[getattr(node, field)]
            for field in ("name", "buffer", "var")
            if getattr(node, field, None) in new and type(node).__name__ != "Call"
        }
        if isinstance(node, For) and set(node.reduces) & set(new):
            changed["reduces"] = tuple(new.get(name, name) for name in node.reduces)
        return replace(node, **changed)

    def in_body(inner: Body) -> Body:
        return tuple(in_fields(stmt) for stmt in inner)

    return in_body(body)
