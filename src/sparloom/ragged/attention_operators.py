"""The five operators of multi-head attention as programs of their own, each of which stores its result.

    proj1      qkv[batch, pos, part, head, dim] of tokens          softmax   weights[batch, head, pos, col] of scores
    qkt        scores[batch, head, pos, col] of qkv                attnv     mixed[batch, pos, head, dim] of these
    qkt_fused  the same; tiles of all sequences are one loop       proj2     attended[batch, pos, channel] of mixed

They are for comparisons, in which one operator is looked at by itself; `scheduled_attention` is faster than all of them
together, since its scores never leave the caches.

Source: CoRa §7.2 and §7.4, Figure 23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sparloom.ir import Const, Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.program import Program, compute, exp, max_over, real, sum_over
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import offload
from sparloom.ragged.schedule.storage import pad_loop, pad_storage, reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import BATCHES, LENGTHS, EncoderShape, batch, channel, col, dim, head, model, part, pos

__all__ = ["ATTENTION_OPERATORS", "TokenExtents", "equal_tokens", "ragged_tokens", "stored_densely"]

TILE = 64  # tokens
PANEL = 16  # columns of weights that lie side by side


@dataclass(frozen=True)
class TokenExtents:
    """How many sequences there are, and how many tokens each has."""

    batches: Expr | int
    tokens: Callable[[Dim], Expr | int]

    @property
    def axes(self) -> dict[Dim, Expr | int]:
        """Dimensions of tokens."""
        return {batch: self.batches, pos: self.tokens(batch)}


def ragged_tokens() -> TokenExtents:
    """Sequences as `LENGTHS` says."""
    return TokenExtents(BATCHES(), lambda sequence: LENGTHS(sequence))


def equal_tokens(batches: int, tokens: int) -> TokenExtents:
    """Sequences of one length that is known when the program is compiled: nothing is ragged."""
    return TokenExtents(batches, lambda sequence: tokens)


def stored_densely(given: Program) -> Program:
    """Store all tensors as if every sequence were as long as the longest; loops stay as they are."""
    for tensor in given.tensors().values():
        varying = [each for each, extent in tensor.axes if each in (pos, col) and not isinstance(extent, Const)]
        if tensor.local is None and varying:
            given = pad_storage(given, tensor.name, full=varying)
    return given


def first_projection(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Proj1, by tiles of a sequence's tokens and panels of weights w_qkv[model, part, head, dim]."""
    x, weights = Tensor("x", {**extents.axes, model: shape.width}), {part: 3, head: shape.heads, dim: shape.head_width}
    w, b = Tensor("w_qkv", {model: shape.width, **weights}), Tensor("b_qkv", weights)
    qkv = compute("qkv", {**extents.axes, **weights}, sum_over(
        {model: shape.width}, x[batch, pos, model] * w[model, part, head, dim]) + b[part, head, dim])
    given = split_dimension(program("proj1", [qkv]), "w_qkv", "dim", PANEL)
    given = reorder_dimensions(given, "w_qkv", ("part", "head", "dim_block", "model", "dim_within"))
    given = split(_in_tiles(given, "qkv"), "qkv", "dim", PANEL)
    tile = ("pos_inner", "dim_inner", "model")
    given = offload(reorder(given, "qkv", ("part", "head", "dim_outer", *tile)), "qkv", *tile)
    return parallel(given, "qkv", "batch_pos_outer")


def scores(shape: EncoderShape, extents: TokenExtents) -> Program:
    """QKT, by tiles of queries; a head's keys are transposed first."""
    qkv = _qkv(shape, extents)
    heads, last = {head: shape.heads, dim: shape.head_width}, {col: extents.tokens(batch)}
    keys = compute("keys", {batch: extents.batches, **heads, **last}, qkv[batch, col, 1, head, dim])
    found = compute("scores", {**_rows(shape, extents), **last}, sum_over(
        {dim: shape.head_width}, qkv[batch, pos, 0, head, dim] * keys[batch, head, dim, col]))
    given = fuse(split(program("qkt", [keys, found]), "scores", "pos", TILE), "scores", "batch", "head")
    given = compute_at(given, "keys", "scores", "batch_head", local=True)
    return parallel(offload(given, "scores", "pos_inner", "col", "dim"), "scores", "batch_head")


def fused_scores(shape: EncoderShape, extents: TokenExtents) -> Program:
    """QKT as on the paper's GPU: sequences and both loops over their tiles are fused, loops and storage are padded.

    A product is a loop along the head, in vector lanes. Every tile asks which sequence it is of, and where.
    """
    qkv = _qkv(shape, extents)
    found = compute("scores", {**_rows(shape, extents), col: extents.tokens(batch)}, sum_over(
        {dim: shape.head_width}, qkv[batch, pos, 0, head, dim] * qkv[batch, col, 1, head, dim]))
    given = pad_storage(program("qkt_fused", [found]), "qkv", {pos: TILE})
    given = pad_storage(given, "scores", {pos: TILE, col: TILE})
    for loop in (pos, col):
        given = split(pad_loop(given, "scores", loop, TILE), "scores", loop.name, TILE)
    given = reorder(given, "scores", ("batch", "pos_outer", "col_outer", "head", "pos_inner", "col_inner", "dim"))
    given = fuse(fuse(given, "scores", "batch", "pos_outer"), "scores", "batch_pos_outer", "col_outer")
    return parallel(vectorise(given, "scores", "dim"), "scores", "batch_pos_outer_col_outer")


def softmax(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Softmax of scaled scores, a row at a time."""
    rows, last = _rows(shape, extents), {col: extents.tokens(batch)}
    given = Tensor("scores", {**rows, **last})
    peak = compute("peak", rows, max_over(last, given[batch, head, pos, col]))
    power = compute("power", {**rows, **last}, exp(
        (given[batch, head, pos, col] - peak[batch, head, pos]) * real(shape.head_width**-0.5)))
    total = compute("total", rows, real(1.0) / sum_over(last, power[batch, head, pos, col]))
    weights = compute("weights", {**rows, **last}, power[batch, head, pos, col] * total[batch, head, pos])
    found = fuse(program("softmax", [peak, power, total, weights]), "weights", "batch", "head")
    for producer in ("total", "power", "peak"):
        found = compute_at(found, producer, "weights", "pos", local=True)
    for nest in ("peak", "power", "total", "weights"):
        found = vectorise(found, nest, found.nest(nest).loops[-1].name)
    return parallel(found, "weights", "batch_head")


def mixed_values(shape: EncoderShape, extents: TokenExtents) -> Program:
    """AttnV, by tiles of rows of weights."""
    weights, qkv = Tensor("weights", {**_rows(shape, extents), col: extents.tokens(batch)}), _qkv(shape, extents)
    mixed = compute("mixed", {**extents.axes, head: shape.heads, dim: shape.head_width}, sum_over(
        {col: extents.tokens(batch)}, weights[batch, head, pos, col] * qkv[batch, col, 2, head, dim]))
    given = reorder(program("attnv", [mixed]), "mixed", ("batch", "head", "pos"))
    given = fuse(split(given, "mixed", "pos", TILE), "mixed", "batch", "head")
    return parallel(offload(given, "mixed", "pos_inner", "dim", "col"), "mixed", "batch_head")


def second_projection(shape: EncoderShape, extents: TokenExtents) -> Program:
    """Proj2, by tiles of a sequence's tokens and panels of weights w_out[head, dim, channel]."""
    heads = {head: shape.heads, dim: shape.head_width}
    mixed, w = Tensor("mixed", {**extents.axes, **heads}), Tensor("w_out", {**heads, channel: shape.width})
    b = Tensor("b_out", {channel: shape.width})
    attended = compute("attended", {**extents.axes, channel: shape.width}, sum_over(
        heads, mixed[batch, pos, head, dim] * w[head, dim, channel]) + b[channel])
    given = split_dimension(program("proj2", [attended]), "w_out", "channel", PANEL)
    given = reorder_dimensions(given, "w_out", ("channel_block", "head", "dim", "channel_within"))
    given = split(_in_tiles(fuse(given, "attended", "head", "dim"), "attended"), "attended", "channel", PANEL)
    tile = ("pos_inner", "channel_inner", "head_dim")
    given = offload(reorder(given, "attended", ("channel_outer", *tile)), "attended", *tile)
    return parallel(given, "attended", "batch_pos_outer")


ATTENTION_OPERATORS: Mapping[str, Callable[[EncoderShape, TokenExtents], Program]] = MappingProxyType({
    "proj1": first_projection, "qkt": scores, "qkt_fused": fused_scores, "softmax": softmax, "attnv": mixed_values,
    "proj2": second_projection})
"""Scheduled for a CPU."""


def _qkv(shape: EncoderShape, extents: TokenExtents) -> Tensor:
    return Tensor("qkv", {**extents.axes, part: 3, head: shape.heads, dim: shape.head_width})


def _rows(shape: EncoderShape, extents: TokenExtents) -> dict[Dim, Expr | int]:
    return {batch: extents.batches, head: shape.heads, pos: extents.tokens(batch)}


def _in_tiles(given: Program, nest: str) -> Program:
    """Tiles of sequences as one loop, the outermost."""
    return fuse(split(given, nest, "pos", TILE), nest, "batch", "pos_outer")
