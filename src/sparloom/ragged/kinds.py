"""Say how iterations of a loop run."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Const
from sparloom.ragged.program import Kind, Program
from sparloom.ragged.reorder import check_order
from sparloom.ragged.tiling import constant_limit

__all__ = ["bind_threads", "parallel", "unroll", "vectorise"]

MAX_UNROLLED = 64


def parallel(program: Program, nest: str, loop: str, *, chunk: int = 1) -> Program:
    """Let iterations run at once: `for i: S  ->  parallel for i: S`, threads on a CPU, CUDA threads on a GPU.

    Legal when the loop is one of the result and in no reduction, no other loop around or inside is parallel, and the
    nest is not computed at a loop of another. Iterations write different elements, and what is computed at a loop
    around is complete before they begin.

    Args:
        chunk: iterations that a thread takes at a time, on a CPU.

    Raises:
        IllegalSchedule: names the loop that is in the way, or chunk is below 1.
    """
    if chunk < 1:
        raise IllegalSchedule(f"{nest}: parallel loop {loop} in chunks of {chunk}: take at least 1")
    found = program.nest(nest)
    for tree in (each.tree() for launch in program.launches for each in launch.nests):
        nests = list(tree)
        if found in nests:
            busy = [(each.name, other.name) for each in nests for other in each.loops
                    if other.kind == "parallel" and (each.name, other.name) != (nest, loop)]
            if busy:
                raise IllegalSchedule(f"{nest}: loop {loop} cannot be parallel beside the parallel loop {busy[0][1]} "
                                      f"of {busy[0][0]}: fuse the two, or make one serial")
            if nests[0] is not found:
                raise IllegalSchedule(f"{nest}: loop {loop} cannot be parallel, since {nest} is computed at a loop of "
                                      f"{nests[0].name}: make a loop of {nests[0].name} parallel")
    return _with_kind(program, nest, loop, "parallel", chunk=chunk)


def bind_threads(program: Program, nest: str, loop: str) -> Program:
    """Deal a loop out to the threads of a GPU's block: `parallel for i: for j: S  ->  parallel for i: shared for j: S`.

    Iterations of the parallel loop are blocks then. On a CPU the loop runs as before.

    Legal when the loop stands directly in the parallel one and is of the result, nothing is computed at the parallel
    loop, and the nest does not run at once with others.

    Raises:
        IllegalSchedule: names what is in the way.

    Source: CoRa §4.1 (`bind`).
    """
    if any(len(launch.nests) > 1 and program.nest(nest) in launch.nests for launch in program.launches):
        raise IllegalSchedule(f"{nest}: loop {loop} cannot be shared by the threads of a block, since {nest} runs at "
                              f"once with others: bind threads to one that runs alone")
    return _with_kind(program, nest, loop, "shared")


def vectorise(program: Program, nest: str, loop: str) -> Program:
    """Let iterations run side by side in vector lanes: `for i: S  ->  simd for i: S`.

    Legal when the loop is innermost, and, if it is of the reduction, when no loop of the result stands inside of the
    reduction. A reduction then adds in another order.

    Raises:
        IllegalSchedule: names what is in the way.
    """
    return _with_kind(program, nest, loop, "simd")


def unroll(program: Program, nest: str, loop: str) -> Program:
    """Write iterations out: `for i in 0 .. 4: S  ->  S[i := 0]; ..; S[i := 3]`, by the C or CUDA compiler.

    Legal when the extent is a constant up to 64: split first, with a factor that divides the extent or after padding.

    Raises:
        IllegalSchedule: it is not.
    """
    extent = program.nest(nest).loop(loop).extent
    if not isinstance(extent, Const) or extent.value > MAX_UNROLLED:
        most = constant_limit(extent)
        given = str(extent.value) if isinstance(extent, Const) else "variable" if most is None else f"up to {most}"
        raise IllegalSchedule(f"{nest}: loop {loop} has {given} iterations, unrolled ones a constant number up to "
                              f"{MAX_UNROLLED}: split it by a factor that divides its extent, or pad it first")
    return _with_kind(program, nest, loop, "unrolled")


def _with_kind(program: Program, nest: str, loop: str, kind: Kind, *, chunk: int = 1) -> Program:
    found = program.nest(nest)
    old = found.loop(loop)
    if old.kind not in ("serial", kind):
        raise IllegalSchedule(f"{nest}: loop {loop} is {old.kind} already: split it to have both")
    changed = replace(found, loops=tuple(
        replace(each, kind=kind, chunk=chunk) if each is old else each for each in found.loops))
    check_order(changed)
    return program.with_nest(changed)
