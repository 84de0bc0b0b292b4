"""Tensor dimension scheduling: in which dimensions a tensor is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ragged.accesses import check_accesses
from sparloom.ragged.layout import offset_steps
from sparloom.ragged.program import Program
from sparloom.ragged.rearrange import Change, FusedDims, OrderedDims, SplitDim

__all__ = ["fuse_dimensions", "reorder_dimensions", "split_dimension"]


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
