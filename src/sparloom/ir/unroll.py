"""Write out the iterations of loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir.nodes import Const, For, Kernel, Stmt
from sparloom.ir.simplify import simplify_expr
from sparloom.ir.traverse import Body, declarations, declared, fresh, rename, replace_loops, replace_refs, walk
from sparloom.ir.verify import verify

__all__ = ["unroll"]

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
    loops = {node.var for node in walk(kernel) if isinstance(node, For)}
    if var is not None and var not in loops:
        raise IllegalSchedule(f"kernel {kernel.name} has no loop {var} to unroll")
    counts = declarations(kernel)
    taken = set(counts)

    def change(loop: For) -> Body:
        chosen = loop.kind == "unrolled" if var is None else loop.var == var
        return _copies(loop, counts=counts, taken=taken) if chosen else (loop,)

    result = replace(kernel, body=replace_loops(kernel.body, change))
    verify(result)
    return result


def _copies(loop: For, *, counts: Counter[str], taken: set[str]) -> Body:
    lo, hi = simplify_expr(loop.lo), simplify_expr(loop.hi)
    if not isinstance(lo, Const) or not isinstance(hi, Const):
        raise IllegalSchedule(f"loop {loop.var} has no constant bounds: substitute them before unrolling, or split it")
    iterations = range(int(lo.value), int(hi.value), loop.step)
    if len(iterations) > MAX_COPIES:
        raise IllegalSchedule(f"loop {loop.var} has {len(iterations)} iterations, over {MAX_COPIES}: split it first")
    copies: list[Stmt] = []
    for position, iteration in enumerate(iterations):
        own = {name: fresh(name, taken) for name in declared(loop.body) if position > 0 or counts[name] > 1}
        copies += rename(replace_refs(loop.body, {loop.var: Const(iteration)}), own)
    return tuple(copies)
