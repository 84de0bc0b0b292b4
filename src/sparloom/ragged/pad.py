"""Padding of loops and of storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ragged.accesses import check_accesses
from sparloom.ragged.dimensions import Dim, round_up
from sparloom.ragged.layout import offset_steps
from sparloom.ragged.program import Program

__all__ = ["pad_loop", "pad_storage"]


def pad_loop(program: Program, nest: str, loop: Dim, multiple: int) -> Program:
    """Let a loop run to the next multiple, so that tiles of it are whole.

    `for i in 0 .. n(o): S  ->  for i in 0 .. ceil(n(o) / m) * m: S`. What is computed beyond n(o) lies in padding of
    the storage; a reduction adds nothing there.

    Legal when the loop runs along a whole dimension and is not split or fused yet, no length function is asked for this
    dimension, and the storage of every tensor that it accesses is padded to a multiple of m in that dimension.

    Raises:
        IllegalSchedule: names the tensor or length function, and the remedy.

    Source: CoRa §4.1.
    """
    found = program.nest(nest)
    old, extents = found.loop(loop.name), dict(found.axes)
    if not isinstance(multiple, int) or multiple < 1:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be padded to multiples of {multiple!r}: take a "
                              f"positive int")
    if loop not in extents or old.extent != extents[loop]:
        raise IllegalSchedule(f"{nest}: loop {loop.name} is no longer a whole dimension: pad before other changes of "
                              "it")
    if found.attached:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be padded, since {found.attached[0][1].name} is "
                              f"computed in the nest: pad before compute_at")
    loops = tuple(replace(each, extent=round_up(old.extent, multiple)) if each is old else each for each in found.loops)
    changed = replace(found, loops=loops, padded=(*found.padded, (loop.name, multiple)))
    check_accesses(changed)
    return program.with_nest(changed)


def pad_storage(program: Program, tensor: str, padding: Mapping[Dim, int] | None = None, *, full: Iterable[Dim] = (),
                bulk: Mapping[Dim, int] | None = None) -> Program:
    """Let slices of a tensor take up more storage than they have elements.

    `tensor[o, i: n(o)]  ->  tensor[o, i: ceil(n(o) / m) * m]`; with `full`, `tensor[o, i: largest n]`; with `bulk`,
    the sum of n(o) over o is rounded up, as bulk padding of a fused loop needs.

    Legal when it is at least the padding of all loops that access the tensor; bulk padding when nothing inside of the
    dimension varies.

    Args:
        tensor: one that is given or computed; what is stored in the padding has no meaning.

    Raises:
        IllegalSchedule: there is no such tensor or dimension, or the padding does not cover that of a loop.

    Source: CoRa §4.1.
    """
    tensors = program.tensors()
    if tensor not in tensors:
        raise IllegalSchedule(f"program {program.name} has no tensor {tensor}; there are: {', '.join(tensors)}")
    changed = tensors[tensor].stored(padding=padding, full=full, bulk=bulk)
    offset_steps(changed)
    result = program.with_tensor(changed)
    for nest in result.nests():
        check_accesses(nest)
    return result
