"""Kernels as C11 with GNU vector extensions and OpenMP, for gcc and clang."""

from __future__ import annotations

from sparloom.ir.c_prelude import prelude
from sparloom.ir.c_printer import Dialect, Printer
from sparloom.ir.nodes import Assign, Const, For, Kernel
from sparloom.ir.traverse import walk
from sparloom.ir.types import reduction_op
from sparloom.ir.verify import verify

__all__ = ["render_c"]

_MAX_UNROLL = 64


def render_c(kernel: Kernel, *more: Kernel) -> str:
    """Print kernels as one C file; each is `void name(params)` in order, `restrict` pointers for buffers.

    Loop bounds are evaluated once, before the loop. Vectors are loaded and stored unaligned.

    Raises:
        IllegalSchedule: a kernel does not verify.
    """
    printers = []
    for each in (kernel, *more):
        verify(each)
        printers.append(Printer(each, _C))
    functions = [printer.function() for printer in printers]
    needs = set().union(*(printer.expressions.needs for printer in printers))
    return "\n".join([prelude(needs), *functions])


def _pragma(loop: For) -> str | None:
    if loop.kind == "parallel":
        return f"#pragma omp parallel for schedule(dynamic, {loop.chunk or 1})"
    if loop.kind == "simd":
        return "#pragma omp simd" + "".join(
            f" reduction({op}:{', '.join(names)})" for op, names in _reductions(loop).items())
    if loop.kind == "unrolled":
        known = isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
        trips = -(-(loop.hi.value - loop.lo.value) // loop.step) if known else 4
        return f"#pragma GCC unroll {min(max(trips, 1), _MAX_UNROLL)}"
    return None


def _reductions(loop: For) -> dict[str, list[str]]:
    """What a verified simd loop reduces, by op."""
    ops = {node.name: reduction_op(node) for node in walk(loop.body) if isinstance(node, Assign)}
    found: dict[str, list[str]] = {}
    for name in loop.reduces:
        found.setdefault(ops.get(name) or "+", []).append(name)
    return found


_C = Dialect(
    head="void",
    restrict="restrict",
    array=" __attribute__((aligned(64)))",
    convert="__builtin_convertvector({}, {})",
    prefetch="__builtin_prefetch({});",
    heap=("allocated({})", "free({});"),
    pragma=_pragma,
    first=lambda loop, lo: lo,
    step=lambda loop, step: step,
    after=lambda loop: None,
)
