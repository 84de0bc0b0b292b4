"""Strip-mine loops."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir.nodes import I64, Binary, Const, Declare, Expr, For, Kernel, Let, Ref
from sparloom.ir.simplify import simplify_expr
from sparloom.ir.traverse import Body, declarations, fresh, replace_loops, walk
from sparloom.ir.verify import verify

__all__ = ["split"]


def split(kernel: Kernel, var: str, factor: int) -> Kernel:
    """Cut a loop into strips of `factor` iterations.

    `for i in lo .. hi: S  ->  for io in lo .. hi step factor: for i in io .. min(io + factor, hi): S`

    Always legal: the order stays. Where the loop is parallel the outer one is, with its chunk; where it is simd or
    unrolled the inner one is. The `min` is left out where constants show that the last strip is full.

    Args:
        var: every loop with this variable is split; the new variable is `var` + "o" (numbered if taken).
        factor: iterations per strip.

    Raises:
        IllegalSchedule: factor is below 1, or there is no such loop.
    """
    if factor < 1:
        raise IllegalSchedule(f"loop {var} cannot be cut into strips of {factor}: take at least 1")
    loops = {node.var for node in walk(kernel) if isinstance(node, For)}
    if var not in loops:
        raise IllegalSchedule(f"kernel {kernel.name} has no loop {var} to split")
    taken = set(declarations(kernel))
    mutable = {node.name for node in walk(kernel) if isinstance(node, Declare)}

    def change(loop: For) -> Body:
        return _strips(loop, factor, mutable=mutable, taken=taken) if loop.var == var else (loop,)

    result = replace(kernel, body=replace_loops(kernel.body, change))
    verify(result)
    return result


def _strips(loop: For, factor: int, *, mutable: set[str], taken: set[str]) -> Body:
    outer, strip = fresh(f"{loop.var}o", taken), factor * loop.step
    before: Body = ()
    hi: Expr = loop.hi
    if not (isinstance(hi, Const) or (isinstance(hi, Ref) and hi.name not in mutable)):
        end = fresh(f"{loop.var}_end", taken)  # the bound is evaluated once, as before
        before, hi = (Let(end, I64, hi),), Ref(end)
    full = Ref(outer) + strip
    inner_hi = full if _divides(loop.lo, hi, strip) else Binary("min", full, hi)
    parallel = loop.kind == "parallel"
    inner = replace(loop, lo=Ref(outer), hi=inner_hi, kind="serial" if parallel else loop.kind, chunk=None)
    kind = "parallel" if parallel else "serial"
    return (*before, For(outer, loop.lo, hi, (inner,), kind=kind, step=strip, chunk=loop.chunk))


def _divides(lo: Expr, hi: Expr, strip: int) -> bool:
    lo, hi = simplify_expr(lo), simplify_expr(hi)
    return isinstance(lo, Const) and isinstance(hi, Const) and (hi.value - lo.value) % strip == 0
