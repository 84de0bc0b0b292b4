"""Statements of the IR as text of the C family; what differs between C and CUDA is a Dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparloom.errors import Unsupported
from sparloom.ir.c_expressions import C_TYPES, CExpressions, c_type
from sparloom.ir.nodes import (
    I64,
    Accumulate,
    Alloc,
    Assign,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Multiply,
    Param,
    Prefetch,
    Ref,
    Scalar,
    Stmt,
    Store,
    Type,
)
from sparloom.ir.types import Binding, bind_params, type_of

__all__ = ["Dialect", "Printer"]


@dataclass(frozen=True)
class Dialect:
    """How a language of the C family says what C alone cannot.

    Args:
        head: before the name of a function.
        restrict: qualifier of pointers that do not alias.
        array: after the declaration of a local array.
        convert: conversion of vectors, to be formatted with text and type.
        prefetch: statement, to be formatted with the address; empty for none.
        heap: expression that allocates, to be formatted with the bytes, and statement that frees; None: there is none.
        pragma: line before a loop, or None.
        first, step: start and step of a parallel or shared loop, from the loop and the text of a serial one.
        after: line after a loop, or None.
    """

    head: str
    restrict: str
    array: str
    convert: str
    prefetch: str
    heap: tuple[str, str] | None
    pragma: Callable[[For], str | None]
    first: Callable[[For, str], str]
    step: Callable[[For, str], str]
    after: Callable[[For], str | None]


class Printer:
    """Prints one kernel; `expressions.needs` is then what its prelude must define."""

    def __init__(self, kernel: Kernel, dialect: Dialect) -> None:
        self.kernel = kernel
        self.dialect = dialect
        self.expressions = CExpressions(dialect.convert)
        self.lines: list[str] = []

    def function(self) -> str:
        """Print the whole function."""
        params = ", ".join(self._param(param) for param in self.kernel.params) or "void"
        self.lines = [f"{self.dialect.head} {self.kernel.name}({params})", "{"]
        self._block(self.kernel.body, bind_params(self.kernel.params), 1)
        self.lines.append("}\n")
        return "\n".join(self.lines)

    def _emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _block(self, body: tuple[Stmt, ...], outer: dict[str, Binding], depth: int) -> None:
        scope = dict(outer)
        for stmt in body:
            self._stmt(stmt, scope, depth)
        for stmt in reversed(body):
            if isinstance(stmt, Alloc) and not isinstance(stmt.size, int) and self.dialect.heap is not None:
                self._emit(depth, self.dialect.heap[1].format(stmt.name))

    def _stmt(self, stmt: Stmt, scope: dict[str, Binding], depth: int) -> None:
        match stmt:
            case For():
                self._for(stmt, scope, depth)
            case If(cond, body, orelse):
                self._emit(depth, f"if ({self._expr(cond, scope)}) {{")
                self._block(body, scope, depth + 1)
                if orelse:
                    self._emit(depth, "} else {")
                    self._block(orelse, scope, depth + 1)
                self._emit(depth, "}")
            case Let(name, type, value):
                self._emit(depth, f"const {self._type(type)} {name} = {self._expr(value, scope)};")
                scope[name] = Binding("let", type)
            case Declare(name, type, value):
                self._emit(depth, f"{self._type(type)} {name} = {self._expr(value, scope)};")
                scope[name] = Binding("mutable", type)
            case Assign(name, value):
                self._emit(depth, f"{name} = {self._expr(value, scope)};")
            case Store(buffer, index, value):
                self._emit(depth, f"{self._place(buffer, index, value, scope)} = {self._expr(value, scope)};")
            case Accumulate(buffer, index, value):
                self._emit(depth, f"{self._place(buffer, index, value, scope)} += {self._expr(value, scope)};")
            case Alloc(name, scalar, size):
                if isinstance(size, int):
                    self._emit(depth, f"{C_TYPES[scalar]} {name}[{size}]{self.dialect.array};")
                else:
                    self._allocate(name, scalar, size, scope, depth)
                scope[name] = Binding("buffer", Type(scalar), writable=True)
            case Multiply():
                self._multiply(stmt, scope, depth)
            case Prefetch(buffer, index) if self.dialect.prefetch:
                address = f"{buffer} + {self.expressions.operand(index, scope)}"
                self._emit(depth, self.dialect.prefetch.format(address))

    def _allocate(self, name: str, scalar: Scalar, size: Expr, scope: dict[str, Binding], depth: int) -> None:
        if self.dialect.heap is None:
            raise Unsupported(f"kernel {self.kernel.name}: local array {name} has a size that is not a constant: give "
                              "lengths a limit, or store it whole")
        self.expressions.needs.add(("allocated", Type(scalar)))
        type, bytes_ = C_TYPES[scalar], f"({self._expr(size, scope)}) * (int64_t)sizeof({C_TYPES[scalar]})"
        self._emit(depth, f"{type} *{self.dialect.restrict} {name} = {self.dialect.heap[0].format(bytes_)};")

    def _multiply(self, stmt: Multiply, scope: dict[str, Binding], depth: int) -> None:
        type = scope[stmt.c.buffer].type
        self.expressions.needs.add(("multiply", type))
        c, a, b = (f"{view.buffer} + {self.expressions.operand(view.at, scope)}" for view in (stmt.c, stmt.a, stmt.b))
        shape = ", ".join(self._expr(extent, scope) for extent in (stmt.rows, stmt.cols, stmt.depth))
        left = f"{a}, {self._expr(stmt.a.row, scope)}, {self._expr(stmt.a.col, scope)}"
        right, result = f"{b}, {self._expr(stmt.b.row, scope)}", f"{c}, {self._expr(stmt.c.row, scope)}"
        self._emit(depth, f"multiply_{type}({shape}, {left}, {right}, {result}, {self._expr(stmt.add, scope)});")

    def _for(self, loop: For, scope: dict[str, Binding], depth: int) -> None:
        lo, hi, var = self._expr(loop.lo, scope), self._expr(loop.hi, scope), loop.var
        end, inner = self._end(loop, scope), {**scope, var: Binding("loop", I64)}
        step = f"++{var}" if loop.step == 1 else f"{var} += {loop.step}"
        if loop.kind in ("parallel", "shared"):
            lo, step = self.dialect.first(loop, lo), self.dialect.step(loop, step)
        one_variable = end is not None and loop.kind in ("parallel", "simd")  # all that OpenMP takes in the head
        if one_variable:
            self._emit(depth, "{")
            depth += 1
            self._emit(depth, f"const int64_t {end} = {hi};")
        pragma = self.dialect.pragma(loop)
        if pragma is not None:
            self._emit(depth, pragma)
        first = f"{var} = {lo}" if end is None or one_variable else f"{var} = {lo}, {end} = {hi}"
        self._emit(depth, f"for (int64_t {first}; {var} < {end or hi}; {step}) {{")
        self._block(loop.body, inner, depth + 1)
        self._emit(depth, "}")
        after = self.dialect.after(loop)
        if after is not None:
            self._emit(depth, after)
        if one_variable:
            self._emit(depth - 1, "}")

    def _end(self, loop: For, scope: dict[str, Binding]) -> str | None:
        """Name for the bound, or None where evaluating it again gives the same."""
        if isinstance(loop.hi, Const) or (isinstance(loop.hi, Ref) and scope[loop.hi.name].role != "mutable"):
            return None
        return f"{loop.var}__end"

    def _place(self, buffer: str, index: Expr, value: Expr, scope: dict[str, Binding]) -> str:
        type = type_of(value, scope)
        if type.lanes == 1:
            return f"{buffer}[{self._expr(index, scope)}]"
        return f"*({self._type(type)} *)({buffer} + {self.expressions.operand(index, scope)})"

    def _expr(self, expr: Expr, scope: dict[str, Binding]) -> str:
        return self.expressions.text(expr, scope)

    def _type(self, type: Type) -> str:
        return self.expressions.type(type)

    def _param(self, param: Param) -> str:
        const = "const " if param.const else ""
        return f"{const}{c_type(param.type)}{f' *{self.dialect.restrict}' if param.buffer else ''} {param.name}"
