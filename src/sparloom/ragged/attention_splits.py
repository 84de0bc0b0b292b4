"""Two products of attention on tiles of 64: whole by padding, whole by splitting the operation, of any extent.

    padded   rows (of scores: columns, too) run to the next multiple of 64
    split    whole tiles, and what remains, are operations of their own, one launch after the other
    hfused   those parts at once, in one launch
    exact    the last tile is as large as it is: products of tiles take any extents

    qkt      scores[batch, head, pos, col] of queries[batch, pos, head, dim] and keys[batch, head, dim, col]
    attnv    mixed[batch, pos, head, dim] of weights[batch, head, pos, col] and values[batch, col, head, dim]

Source: CoRa §7.3, Figure 14. Departure: the reduction of attnv is not padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.program import Program, compute, sum_over
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split
from sparloom.ragged.schedule.operations import hfuse, offload, split_operation
from sparloom.ragged.schedule.storage import pad_loop, pad_storage
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import BATCHES, LENGTHS, EncoderShape, batch, col, dim, head, pos

__all__ = ["SPLIT_ARMS", "SPLIT_OPERATORS"]

TILE = 64

Schedule = Callable[[Program], Program]


def scores(shape: EncoderShape) -> Program:
    """Define QKT, unscheduled."""
    queries = Tensor("queries", {batch: BATCHES(), pos: LENGTHS(batch), head: shape.heads, dim: shape.head_width})
    keys = Tensor("keys", {batch: BATCHES(), head: shape.heads, dim: shape.head_width, col: LENGTHS(batch)})
    return program("qkt", [compute(
        "scores", {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch), col: LENGTHS(batch)},
        sum_over({dim: shape.head_width}, queries[batch, pos, head, dim] * keys[batch, head, dim, col]))])


def mixed_values(shape: EncoderShape) -> Program:
    """Define AttnV, unscheduled but for the order of its loops."""
    weights = Tensor("weights", {batch: BATCHES(), head: shape.heads, pos: LENGTHS(batch), col: LENGTHS(batch)})
    values = Tensor("values", {batch: BATCHES(), col: LENGTHS(batch), head: shape.heads, dim: shape.head_width})
    given = program("attnv", [compute(
        "mixed", {batch: BATCHES(), pos: LENGTHS(batch), head: shape.heads, dim: shape.head_width},
        sum_over({col: LENGTHS(batch)}, weights[batch, head, pos, col] * values[batch, col, head, dim]))])
    return reorder(given, "mixed", ("batch", "head", "pos"))


SPLIT_OPERATORS: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType(
    {"qkt": scores, "attnv": mixed_values})


def padded(given: Program) -> Program:
    """Pad loops and storage to whole tiles."""
    nest = given.outputs[0]
    for tensor in given.tensors().values():
        tiled = {each: TILE for each in _tiled(given) if each in dict(tensor.axes)}
        given = pad_storage(given, tensor.name, tiled)
    for each in _tiled(given):
        given = pad_loop(given, nest, each, TILE)
    return _on_tiles(given, nest)


def parts(given: Program) -> Program:
    """Split the operation where whole tiles end, in every dimension that is tiled."""
    nests = [given.outputs[0]]
    for each in _tiled(given):
        for nest in nests:
            given = split_operation(given, nest, each, multiple=TILE)
        nests = [f"{nest}_{part}" for nest in nests for part in ("main", "rest")]
    for nest in nests:
        given = _on_tiles(given, nest)
    return given


def parts_at_once(given: Program) -> Program:
    """Run the parts of the operation in one launch."""
    given = parts(given)
    return hfuse(given, [nest.name for nest in given.nests()])


def exact(given: Program) -> Program:
    """Leave the last tile of a sequence as it is."""
    return _on_tiles(given, given.outputs[0])


SPLIT_ARMS: Mapping[str, Schedule] = MappingProxyType(
    {"padded": padded, "split": parts, "hfused": parts_at_once, "exact": exact})
"""Schedules of either operator."""


def _tiled(given: Program) -> list[Dim]:
    """Loops of the result whose extents vary."""
    return [each for each, _ in given.nest(given.outputs[0]).operation.output.axes if each in (pos, col)]


def _on_tiles(given: Program, nest: str) -> Program:
    """Sequences and heads in parallel, rows in tiles, a tile by the routine for products."""
    rows = given.nest(nest).loops[2].name
    given = fuse(given, nest, "batch", "head")
    if not rows.endswith("_rest"):
        given = split(given, nest, rows, TILE)
    return parallel(offload(given, nest, *(loop.name for loop in given.nest(nest).loops[-3:])), nest, "batch_head")
