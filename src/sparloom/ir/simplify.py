"""Fold constants and drop what does nothing."""

from __future__ import annotations

from dataclasses import replace

from sparloom.ir.fold import fold
from sparloom.ir.nodes import (
    BOOL,
    I64,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Stmt,
)
from sparloom.ir.traverse import Body, declarations, declared, fresh, rebuild, rename, replace_refs
from sparloom.ir.verify import verify

__all__ = ["simplify", "simplify_expr"]


def simplify(kernel: Kernel) -> Kernel:
    """Fold constants, put constants in place of the names they are let to, drop empty and inline single iterations.

    `2 * 3  ->  6`, `x + 0  ->  x`, `x * 1  ->  x`, `x * 0  ->  0` (integers), `(x + 2) + 3  ->  x + 5`;
    `let a = 4; S  ->  S[a := 4]`; `if true: S  ->  S`; `for i in 4 .. 4: S  ->  ` nothing;
    `for i in 4 .. 5: S  ->  S[i := 4]` unless the loop is shared, names that S declares renamed where they would clash.

    Always legal: of floats only `x * 1`, `x / 1` and `x - 0` are touched, which keep every bit.
    """
    counts = declarations(kernel)
    taken = set(counts)

    def in_body(body: Body) -> Body:
        kept: list[Stmt] = []
        waiting = list(body)
        while waiting:
            stmt = rebuild(waiting.pop(0), expr=simplify_expr, body=lambda inner: inner)
            if isinstance(stmt, Let) and isinstance(stmt.value, Const):
                waiting = list(replace_refs(tuple(waiting), {stmt.name: stmt.value}))
                continue
            inlined = _inlined(stmt)
            if inlined is None:
                stmt = rebuild(stmt, expr=simplify_expr, body=in_body)
                kept += [] if _is_empty(stmt) else [stmt]
            else:
                own = {name: fresh(name, taken) for name in declared(inlined) if counts[name] > 1}
                waiting = [*rename(inlined, own), *waiting]
        return tuple(kept)

    result = replace(kernel, body=in_body(kernel.body))
    verify(result)
    return result


def simplify_expr(expr: Expr) -> Expr:
    """Fold an expression from the leaves up."""
    return fold(rebuild(expr, expr=simplify_expr, body=lambda inner: inner))


def _inlined(stmt: Stmt) -> Body | None:
    """Statements that do what `stmt` does without its control, if that is known now."""
    match stmt:
        case If(Const(value, type), body, orelse) if type == BOOL:
            return body if value else orelse
        case For(var, Const(lo), Const(hi), body, step=step):
            if lo >= hi:
                return ()
            if lo + step >= hi and stmt.kind != "shared":
                return replace_refs(body, {var: Const(lo, I64)})
    return None


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, (For, If)) and not stmt.body and not getattr(stmt, "orelse", ())
