"""Load hoisting: entries of tables are read as far outside as their index is known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sparloom.ir import (
    Alloc,
    Binary,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Ref,
    Select,
    Stmt,
    Type,
    fresh,
    rebuild,
    walk,
)

__all__ = ["hoist"]

Body = tuple[Stmt, ...]


def hoist(kernel: Kernel, tables: Collection[str]) -> Kernel:
    """Read entries of tables outside of loops that do not change their index.

    `for i: S[table[x]]  ->  let entry = table[x]; for i: S[entry]`, from the outermost loop inwards. Always legal:
    tables are not written, and an index that no name of the loop is in is one of an iteration around it, for which the
    table has an entry. Indices that a condition of a Select decides about stay inside of it.

    Args:
        tables: names of the buffers that are tables.

    Source: CoRa §7.4 (load hoisting).
    """
    types = {param.name: param.type for param in kernel.params}
    taken = {param.name for param in kernel.params} | {name for node in walk(kernel) for name in _declared(node)}

    def in_body(body: Body) -> Body:
        lines: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, For):
                lets, stmt = _outside(stmt, tables, types=types, taken=taken)
                lines += lets
                lines.append(replace(stmt, body=in_body(stmt.body)))
            elif isinstance(stmt, If):
                lines.append(replace(stmt, body=in_body(stmt.body), orelse=in_body(stmt.orelse)))
            else:
                lines.append(stmt)
        return tuple(lines)

    return replace(kernel, body=in_body(kernel.body))


def _outside(loop: For, tables: Collection[str], *, types: dict[str, Type], taken: set[str]) -> tuple[list[Let], For]:
    """Lets to stand before a loop, and the loop that uses them."""
    inside = {loop.var} | {name for node in walk(loop.body) for name in _declared(node)}
    found: dict[Expr, str] = {}
    lets: list[Let] = []
    decided: list[set[str]] = []  # names that the conditions around keep small enough

    def in_expr(expr: Expr) -> Expr:
        if isinstance(expr, Select):
            decided.append(_decided(expr.cond))
            guarded = replace(expr, a=in_expr(expr.a))
            decided.pop()
            return replace(guarded, cond=in_expr(expr.cond), b=in_expr(expr.b))
        expr = rebuild(expr, expr=in_expr, body=lambda body: body)
        if not isinstance(expr, Load) or expr.buffer not in tables or _names(expr.index) & inside.union(*decided):
            return expr
        if expr not in found:
            found[expr] = fresh(f"{expr.buffer}_entry", taken)
            lets.append(Let(found[expr], types[expr.buffer], expr))
        return Ref(found[expr])

    def in_body(body: Body) -> Body:
        return tuple(rebuild(stmt, expr=in_expr, body=in_body) for stmt in body)

    body = in_body(loop.body)
    return lets, replace(loop, lo=in_expr(loop.lo), hi=in_expr(loop.hi), body=body)


def _decided(cond: Expr) -> set[str]:
    match cond:
        case Binary("<", Ref(name), _):
            return {name}
        case Binary("and", a, b):
            return _decided(a) | _decided(b)
    return _names(cond)


def _names(expr: Expr) -> set[str]:
    return {node.name for node in walk(expr) if isinstance(node, Ref)} | {
        node.buffer for node in walk(expr) if isinstance(node, Load)}


def _declared(node: Stmt | Expr) -> tuple[str, ...]:
    if isinstance(node, For):
        return (node.var,)
    return (node.name,) if isinstance(node, (Let, Declare, Alloc)) else ()
