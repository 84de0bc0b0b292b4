"""Kernels as text for people."""

from __future__ import annotations

from sparloom.ir.nodes import (
    BOOL,
    F32,
    I64,
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
    Param,
    Prefetch,
    Ref,
    Select,
    Stmt,
    Store,
    Sum,
    Unary,
    View,
)

__all__ = ["pretty", "pretty_expr"]

_LEVELS = {
    "or": 1, "and": 2, "<": 4, "<=": 4, ">": 4, ">=": 4, "==": 4, "!=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6,
    "%": 6,
}
_NOT, _NEGATIVE, _PRIMARY = 3, 7, 8


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
        case Let(name, type, value):
            return [f"{indent}let {name}: {type} = {_text(value)}"]
        case Declare(name, type, value):
            return [f"{indent}var {name}: {type} = {_text(value)}"]
        case Assign(name, value):
            return [f"{indent}{name} = {_text(value)}"]
        case Store(buffer, index, value):
            return [f"{indent}{buffer}[{_text(index)}] = {_text(value)}"]
        case Accumulate(buffer, index, value):
            return [f"{indent}{buffer}[{_text(index)}] += {_text(value)}"]
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
