"""Leave dense inner tiles to a routine for products of matrices."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ragged.lower import lower_launch
from sparloom.ragged.program import Program
from sparloom.ragged.reorder import check_order

__all__ = ["offload"]


def offload(program: Program, nest: str, rows: str, cols: str, depth: str) -> Program:
    """Compute the three innermost loops by one call: kernels/cpu/multiply.cpp in C, loops in CUDA.

    `for r: for c: for k (reduction): out[r, c] += a[r, k] * b[k, c]  ->  out[..] += a[..] b[..]`; what else the value
    is made of is done to the tile afterwards, while it is in the caches. Extents may vary, tiles need no padding.

    Legal when the loops are the innermost, in this order, and of the kind serial, the reduction adds up the product of
    two tensors, elements of all three tensors are evenly spaced along the loops, and along the columns side by side.
    It adds in another order.

    Raises:
        IllegalSchedule: it is not, and why.

    Source: CoRa §7.1, D.8 (inner tiles by MKL and OpenBLAS). Departures: products are our own routine's, no BLAS's;
    what follows the product is fused with it.
    """
    found = program.nest(nest)
    names = (rows, cols, depth)
    last = tuple(loop.name for loop in found.loops[-3:])
    if last != names:
        raise IllegalSchedule(f"{nest} cannot be offloaded at loops {', '.join(names)}: the innermost are "
                              f"{', '.join(last)}: reorder first")
    reduces = [found.loop(name).reduces for name in names]
    others = [name for name in names if found.loop(name).kind != "serial"]
    if reduces != [False, False, True] or others:
        raise IllegalSchedule(f"{nest} cannot be offloaded at loops {', '.join(names)}: take two serial loops of the "
                              f"result, then a serial one of the reduction")
    changed = replace(found, loops=(*found.loops[:-3], *(replace(loop, kind="dense") for loop in found.loops[-3:])))
    check_order(changed)
    result = program.with_nest(changed)
    for launch in result.launches:
        if any(each.name == nest for top in launch.nests for each in top.tree()):
            lower_launch(result, launch)
    return result
