"""What Multiply means, in loops."""

from __future__ import annotations

from dataclasses import replace

from sparloom.ir.nodes import (
    BOOL,
    Accumulate,
    Alloc,
    Assign,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Multiply,
    Ref,
    Stmt,
    Store,
    Type,
    View,
)
from sparloom.ir.traverse import Body, declarations, fresh, rebuild

__all__ = ["product_loops", "without_products"]


def without_products(kernel: Kernel) -> Kernel:
    """Put loops in place of products of tiles, for languages that have none."""
    taken = set(declarations(kernel))
    types = {param.name: param.type for param in kernel.params if param.buffer}

    def in_body(body: Body) -> Body:
        lines: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Multiply):
                lines.append(product_loops(stmt, types[stmt.c.buffer], taken))
            else:
                if isinstance(stmt, Alloc):
                    types[stmt.name] = Type(stmt.scalar)
                lines.append(rebuild(stmt, expr=lambda expr: expr, body=in_body))
        return tuple(lines)

    return replace(kernel, body=in_body(kernel.body))


def product_loops(stmt: Multiply, type: Type, taken: set[str]) -> For:
    """for r: for q: total = 0; for k: total += a[r, k] * b[k, q];  c[r, q] = total, or += total

    Args:
        type: of the elements.
        taken: names in use; new ones are added.
    """
    row, col, inner, total = (fresh(name, taken) for name in ("row", "col", "inner", "total"))
    a, b, c = (_element(stmt.a, row, inner), _element(stmt.b, inner, col), _place(stmt.c, row, col))
    added = Assign(total, Ref(total) + a * b)
    store, accumulate = Store(stmt.c.buffer, c, Ref(total)), Accumulate(stmt.c.buffer, c, Ref(total))
    match stmt.add:
        case Const(value, given) if given == BOOL:
            last: Stmt = accumulate if value else store
        case _:
            last = If(stmt.add, (accumulate,), (store,))
    body = (Declare(total, type, Const(0.0, type)), For(inner, 0, stmt.depth, (added,)), last)
    return For(row, 0, stmt.rows, (For(col, 0, stmt.cols, body),))


def _element(view: View, row: str, col: str) -> Expr:
    return Load(view.buffer, _place(view, row, col))


def _place(view: View, row: str, col: str) -> Expr:
    return view.at + Ref(row) * view.row + Ref(col) * view.col
