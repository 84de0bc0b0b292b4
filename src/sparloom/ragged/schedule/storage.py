"""Padding of loops and of storage.

Tensor dimension scheduling: in which dimensions a tensor is stored.

Operands copied to where products of tiles meet them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.measure import vector_lanes
from sparloom.ragged.definition import check_accesses
from sparloom.ragged.dimensions import Dim, round_up
from sparloom.ragged.layout import offset_steps
from sparloom.ragged.program import Program
from sparloom.ragged.schedule.loops import reorder, split, vectorise
from sparloom.ragged.tensor import Change, FusedDims, OrderedDims, SplitDim

__all__ = [
    "PANEL", "copied_to_panels", "fuse_dimensions", "pad_loop", "pad_storage", "reorder_dimensions", "split_dimension",
]


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


def split_dimension(program: Program, tensor: str, dim: str, factor: int) -> Program:
    """Store a dimension in blocks: `t[.., i]  ->  t[.., i // factor, i % factor]`, named dim_block and dim_within.

    Always legal; slices are padded to whole blocks. Where loops are split by the same factor, accesses have no
    division.

    Raises:
        IllegalSchedule: no such tensor or dimension, or factor is below 1.

    Source: CoRa §4.1.
    """
    if not isinstance(factor, int) or factor < 1:
        raise IllegalSchedule(f"tensor {tensor}: dimension {dim} cannot be cut into blocks of {factor!r}: take a "
                              "positive int")
    return _changed(program, tensor, SplitDim(dim, factor))


def fuse_dimensions(program: Program, tensor: str, outer: str, inner: str) -> Program:
    """Store two neighbouring dimensions as one: `t[.., o, i, ..]  ->  t[.., starts(o) + i, ..]`, named outer_inner.

    Legal when the extent of the inner one is constant, or depends on the outer one alone, and no other depends on it.

    Raises:
        IllegalSchedule: names the extent that is in the way.

    Source: CoRa §4.1, §5.1.
    """
    return _changed(program, tensor, FusedDims(outer, inner))


def reorder_dimensions(program: Program, tensor: str, order: Sequence[str]) -> Program:
    """Store dimensions in another order: `t[i, j, k], order (k, i)  ->  t[k, j, i]`; others keep their places.

    Legal when every vdim stays inside of those that its extent depends on.

    Raises:
        IllegalSchedule: names the dimensions.

    Source: CoRa §4.1.
    """
    return _changed(program, tensor, OrderedDims(tuple(order)))


def _changed(program: Program, tensor: str, change: Change) -> Program:
    tensors = program.tensors()
    if tensor not in tensors:
        raise IllegalSchedule(f"program {program.name} has no tensor {tensor}; there are: {', '.join(tensors)}")
    given = tensors[tensor]
    changed = replace(given, changes=(*given.changes, change))
    offset_steps(changed)
    result = program.with_tensor(changed)
    for nest in result.nests():
        check_accesses(nest)
    return result


PANEL = max(16, 2 * vector_lanes())
"""Columns of a panel: two vectors, at least 16: every number of the left operand that is loaded meets two."""


def copied_to_panels(given: Program, copy: str, *, panel: int, depth: int) -> Program:
    """Store a local copy of a matrix, (inner, col), in panels: [block of inner][panel of col][inner][col].

    A panel is written as a whole, columns in vector lanes.

    Args:
        copy: a producer that was computed at a loop of its consumer.
        panel: columns that lie side by side.
        depth: of a block of the reduction.
    """
    rows, cols = (loop.name for loop in given.nest(copy).loops)
    given = split_dimension(split_dimension(given, copy, "col", panel), copy, "inner", depth)
    given = reorder_dimensions(given, copy, ("inner_block", "col_block", "inner_within", "col_within"))
    given = split(given, copy, cols, panel)
    given = reorder(given, copy, (f"{cols}_outer", rows, f"{cols}_inner"))
    return vectorise(given, copy, f"{cols}_inner")
