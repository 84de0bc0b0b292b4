"""Walking over nodes and building changed copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import TypeVar

from sparloom.ir.nodes import Alloc, Declare, Expr, For, Kernel, Let, Ref, Stmt

__all__ = [
    "Body", "declarations", "declared", "fresh", "rebuild", "rename", "replace_refs", "walk",
]

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
    """List the names declared by the statements of `body` themselves, not inside them."""
    return tuple(stmt.name for stmt in body if isinstance(stmt, (Let, Declare, Alloc)))


def fresh(name: str, taken: set[str]) -> str:
    """Return `name`, or it with the first number that makes it new, and add it to `taken`."""
    chosen, number = name, 0
    while chosen in taken:
        number += 1
        chosen = f"{name}_{number}"
    taken.add(chosen)
    return chosen


def replace_refs(body: Body, values: dict[str, Expr]) -> Body:
    """Put expressions in place of names; the caller sees to it that no name in them is declared inside `body`."""

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
