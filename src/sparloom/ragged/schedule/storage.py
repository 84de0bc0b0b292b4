"""Schedule storage: padding of loops and tensors, and the dimensions in which a tensor is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.measure import vector_lanes
from sparloom.ragged.definition import check_accesses
from sparloom.ragged.dimensions import Dim, round_up
from sparloom.ragged.layout import offset_steps
from sparloom.ragged.nests import Program
from sparloom.ragged.schedule.loops import reorder, split, vectorise
from sparloom.ragged.tensor import Change, OrderedDims, SplitDim, Tensor

PANEL = max(16, 2 * vector_lanes())
"""Columns of a panel: two vectors, and at least 16, so that every loaded number of the left operand is used twice."""


def pad_loop(program: Program, nest: str, loop: Dim, multiple: int) -> Program:
    """Round up the extent of a loop, so that its tiles are whole.

    `for i in 0 .. n(o): S  ->  for i in 0 .. ceil(n(o) / m) * m: S`. Results beyond n(o) go to padding of the storage;
    a reduction adds nothing there.

    Legal if the loop runs along a whole dimension and is not split or fused yet, no length function is indexed by this
    dimension, and the storage of every tensor it accesses is padded to a multiple of m in that dimension.

    Source: CoRa §4.1.
    """
    found = program.nest(nest)
    old, extents = found.loop(loop.name), dict(found.axes)
    if not isinstance(multiple, int) or multiple < 1:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be padded to multiples of {multiple!r}: use a "
                              f"positive int")
    if loop not in extents or old.extent != extents[loop]:
        raise IllegalSchedule(f"{nest}: loop {loop.name} is no longer a whole dimension: pad before you change it")
    if found.attached:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be padded, since {found.attached[0][1].name} is "
                              f"computed in the nest: pad before compute_at")
    loops = tuple(replace(each, extent=round_up(old.extent, multiple)) if each is old else each for each in found.loops)
    changed = replace(found, loops=loops, padded=(*found.padded, (loop.name, multiple)))
    check_accesses(changed)
    return program.with_nest(changed)


def pad_storage(program: Program, tensor: str, padding: Mapping[Dim, int] | None = None, *, full: Iterable[Dim] = ()
                ) -> Program:
    """Make the slices of a tensor larger than their elements require.

    `tensor[o, i: n(o)]  ->  tensor[o, i: ceil(n(o) / m) * m]`; with `full`, `tensor[o, i: largest n]`.

    Legal if it covers the padding of all loops that access the tensor.

    Args:
        tensor: an input or a result; values in its padding are undefined.

    Source: CoRa §4.1.
    """
    return _with_tensor(program, tensor, lambda each: each.stored(padding=padding, full=full))


def pad_all(program: Program, tensors: Mapping[str, Mapping[Dim, int]], nest: str, loops: Mapping[Dim, int]) -> Program:
    """Pad the storage of tensors, then loops of a nest, to multiples."""
    for tensor, padding in tensors.items():
        program = pad_storage(program, tensor, padding)
    for loop, multiple in loops.items():
        program = pad_loop(program, nest, loop, multiple)
    return program


def split_dimension(program: Program, tensor: str, dim: str, factor: int) -> Program:
    """Store a dimension in blocks: `t[.., i]  ->  t[.., i // factor, i % factor]`, named dim_block and dim_within.

    Always legal; slices are padded to whole blocks. If loops are split by the same factor, accesses need no division.

    Source: CoRa §4.1.
    """
    if not isinstance(factor, int) or factor < 1:
        raise IllegalSchedule(f"tensor {tensor}: dimension {dim} cannot be split into blocks of {factor!r}: use a "
                              "positive int")
    return _with_change(program, tensor, SplitDim(dim, factor))


def reorder_dimensions(program: Program, tensor: str, order: Sequence[str]) -> Program:
    """Store dimensions in another order: `t[i, j, k], order (k, i)  ->  t[k, j, i]`; others keep their positions.

    Legal if every vdim stays inside those on which its extent depends.

    Source: CoRa §4.1.
    """
    return _with_change(program, tensor, OrderedDims(tuple(order)))


def store_in_panels(prog: Program, copy: str, *, panel: int, depth: int) -> Program:
    """Store a local copy of a matrix, (inner, col), in panels: [block of inner][panel of col][inner][col].

    A panel is written as a whole, columns in vector lanes.

    Args:
        copy: producer that was attached to a loop of its consumer.
        panel: number of columns that are contiguous.
        depth: extent of a block of the reduction.
    """
    rows, cols = (loop.name for loop in prog.nest(copy).loops)
    prog = split_dimension(split_dimension(prog, copy, "col", panel), copy, "inner", depth)
    prog = reorder_dimensions(prog, copy, ("inner_block", "col_block", "inner_within", "col_within"))
    prog = split(prog, copy, cols, panel)
    prog = reorder(prog, copy, (f"{cols}_outer", rows, f"{cols}_inner"))
    return vectorise(prog, copy, f"{cols}_inner")


def _with_change(program: Program, tensor: str, change: Change) -> Program:
    return _with_tensor(program, tensor, lambda each: replace(each, changes=(*each.changes, change)))


def _with_tensor(program: Program, tensor: str, change: Callable[[Tensor], Tensor]) -> Program:
    tensors = program.tensors()
    if tensor not in tensors:
        raise IllegalSchedule(f"program {program.name} has no tensor {tensor}; there are: {', '.join(tensors)}")
    changed = change(tensors[tensor])
    offset_steps(changed)
    result = program.with_tensor(changed)
    for nest in result.nests():
        if nest.operation.accesses(tensor):
            check_accesses(nest)
    return result
