"""Write out the iterations of loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir.nodes import Const, For, If, Kernel, Stmt
from sparloom.ir.simplify import simplify_expr
from sparloom.ir.traverse import Body, declarations, declared, fresh, rename, replace_refs
from sparloom.ir.verify import verify

__all__ = ["MAX_COPIES", "unroll"]

MAX_COPIES = 64


def unroll(kernel: Kernel, var: str | None = None) -> Kernel:
    """Repeat the body once per iteration, in order.

    `for i in 0 .. 3: S  ->  S[i := 0]; S[i := 1]; S[i := 2]`, names that S declares numbered where they would clash.

    Legal when the bounds are constants and there are at most 64 iterations; the loop may be of any kind, since running
    in order is one of the orders it allows.

    Args:
        var: the loops with this variable; by default those of kind `unrolled`.

    Raises:
        IllegalSchedule: the bounds are not constant, the copies too many, or there is no such loop.
    """
    counts, count = declarations(kernel), 0
    taken = set(counts)

    def in_stmt(stmt: Stmt) -> Body:
        nonlocal count
        if isinstance(stmt, If):
            return (replace(stmt, body=in_body(stmt.body), orelse=in_body(stmt.orelse)),)
        if not isinstance(stmt, For):
            return (stmt,)
        body = in_body(stmt.body)
        if stmt.var != var if var is not None else stmt.kind != "unrolled":
            return (replace(stmt, body=body),)
        count += 1
        return _copies(stmt, body, counts=counts, taken=taken)

    def in_body(body: Body) -> Body:
        return tuple(each for stmt in body for each in in_stmt(stmt))

    result = replace(kernel, body=in_body(kernel.body))
    if var is not None and count == 0:
        raise IllegalSchedule(f"kernel {kernel.name} has no loop {var} to unroll")
    verify(result)
    return result


def _copies(loop: For, body: Body, *, counts: Counter[str], taken: set[str]) -> Body:
    lo, hi = simplify_expr(loop.lo), simplify_expr(loop.hi)
    if not isinstance(lo, Const) or not isinstance(hi, Const):
        raise IllegalSchedule(f"loop {loop.var} has no constant bounds: substitute them before unrolling, or split it")
    iterations = range(int(lo.value), int(hi.value), loop.step)
    if len(iterations) > MAX_COPIES:
        raise IllegalSchedule(f"loop {loop.var} has {len(iterations)} iterations, over {MAX_COPIES}: split it first")
    copies: list[Stmt] = []
    for position, iteration in enumerate(iterations):
        own = {name: fresh(name, taken) for name in declared(body) if position > 0 or counts[name] > 1}
        copies += rename(replace_refs(body, {loop.var: Const(iteration)}), own)
    return tuple(copies)
