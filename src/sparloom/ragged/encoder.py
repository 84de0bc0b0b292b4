"""The encoder layer of the transformer on ragged batches: attention, projections, feed-forward, norms.

Tokens of all sequences lie next to each other, x[batch, pos, model]; nothing is padded. `attention`, `mixing` and
`encoder_layer` define the programs, `scheduled_attention` and the like say how they run on a CPU:

    projections, feed-forward    the loop over all tokens in tiles of rows, all columns of a panel at a time; weights
                                 are stored in such panels; bias, relu and residual follow each tile in the cache
    attention                    in parallel over sequences and heads; keys and values of a head are copied into panels;
                                 per tile of queries the scores, their softmax and the mix are local arrays
    norms                        a token at a time

Source: CoRa §7.2, Figure 3 (the nine kernels; hidden sizes of the base model). Departures: bulk and partial padding are
not needed, since tiles of products take any extent; the three kernels of attention are one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Expr
from sparloom.ragged.definition import program
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.program import (
    Operation,
    Program,
    compute,
    exp,
    less,
    max_over,
    maximum,
    minimum,
    real,
    sum_over,
    where,
)
from sparloom.ragged.schedule.compute import compute_at
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import offload
from sparloom.ragged.schedule.storage import reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import (
    BATCHES,
    LENGTHS,
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    col,
    dim,
    head,
    hidden,
    linear,
    model,
    norm,
    part,
    pos,
    scheduled_norm,
)

__all__ = [
    "LENGTHS", "EncoderSchedule", "EncoderShape", "attention", "encoder_layer", "linear", "mixing", "norm",
    "scheduled_attention", "scheduled_encoder_layer", "scheduled_mixing", "scheduled_norm", "seen_by", "stepped",
]

along = Dim("along")  # queries and keys in their product, so that no tile of it is taken for one of values


def attention(shape: EncoderShape) -> Program:
    """Define multi-head attention, unscheduled: attended = (softmax(q kT / sqrt(head width)) v) w_out + b_out.

    x[batch, pos, model], w_qkv[model, part, head, dim] with q, k, v as parts, b_qkv[part, head, dim],
    w_out[head, dim, channel], b_out[channel].
    """
    return program("attention", _attention(shape, residual=False))


def mixing(shape: EncoderShape) -> Program:
    """Define scaled dot-product attention, unscheduled.

    mixed[batch, pos, head, dim] of qkv[batch, pos, part, head, dim].
    """
    qkv = Tensor("qkv", {**TOKENS, part: 3, head: shape.heads, dim: shape.head_width})
    return program("mixing", _mixing(shape, qkv))


def encoder_layer(shape: EncoderShape) -> Program:
    """Define the whole layer, norms behind the sums, unscheduled.

    Beside the tensors of `attention`: w_in[channel, hidden], b_in[hidden], w_back[hidden, model], b_back[model];
    gain and shift of the norms: gain_1[channel], shift_1[channel], gain_2[model], shift_2[model].
    """
    *before, attended = _attention(shape, residual=True)
    norm_1 = norm(attended, "1", channel, width=shape.width, epsilon=shape.epsilon)
    first = norm_1[-1]
    w_in = Tensor("w_in", {channel: shape.width, hidden: shape.hidden})
    b_in = Tensor("b_in", {hidden: shape.hidden})
    active = compute("active", {**TOKENS, hidden: shape.hidden}, maximum(
        sum_over({channel: shape.width}, first[batch, pos, channel] * w_in[channel, hidden]) + b_in[hidden], real(0.0)))
    w_back = Tensor("w_back", {hidden: shape.hidden, model: shape.width})
    b_back = Tensor("b_back", {model: shape.width})
    fed = compute("fed", {**TOKENS, model: shape.width}, sum_over(
        {hidden: shape.hidden}, active[batch, pos, hidden] * w_back[hidden, model])
        + b_back[model] + first[batch, pos, model])
    norm_2 = norm(fed, "2", model, width=shape.width, epsilon=shape.epsilon)
    return program("encoder", [*before, attended, *norm_1, active, fed, *norm_2])


def scheduled_mixing(shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    """Schedule `mixing` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer`."""
    return _mixed(mixing(stepped(shape, chosen)), chosen, ())


def scheduled_attention(shape: EncoderShape, chosen: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `attention` for a CPU; `kept` and errors as in `scheduled_encoder_layer`."""
    given = linear(attention(stepped(shape, chosen)), "qkv", "dim", "model", chosen)
    given = _mixed(given, chosen, kept)
    return linear(fuse(given, "attended", "head", "dim"), "attended", "channel", "head_dim", chosen)


def scheduled_encoder_layer(shape: EncoderShape, chosen: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `encoder_layer` for a CPU.

    Args:
        kept: results that are stored as a whole, though they are needed in one place only: for gradients.

    Raises:
        IllegalSchedule: the step of a causal shape is no multiple of the tile of queries.
    """
    given = linear(encoder_layer(stepped(shape, chosen)), "qkv", "dim", "model", chosen)
    given = _mixed(given, chosen, kept)
    given = linear(fuse(given, "attended", "head", "dim"), "attended", "channel", "head_dim", chosen)
    given = linear(given, "active", "hidden", "channel", chosen)
    given = linear(given, "fed", "model", "hidden", chosen)
    for number, last in (("1", "channel"), ("2", "model")):
        given = scheduled_norm(given, number, last, kept)
    return given


def stepped(shape: EncoderShape, chosen: EncoderSchedule) -> EncoderShape:
    """Let rows of a tile of queries end at the same score."""
    step = shape.step or chosen.queries
    if shape.causal and step % chosen.queries:
        raise IllegalSchedule(f"causal attention in steps of {step} with {chosen.queries} queries in a tile: take a "
                              f"multiple of {chosen.queries} as the step")
    return replace(shape, step=step)


def _attention(shape: EncoderShape, *, residual: bool) -> list[Operation]:
    heads, width, size = shape.heads, shape.head_width, shape.width
    x = Tensor("x", {**TOKENS, model: size})
    w_qkv = Tensor("w_qkv", {model: size, part: 3, head: heads, dim: width})
    b_qkv = Tensor("b_qkv", {part: 3, head: heads, dim: width})
    qkv = compute("qkv", {**TOKENS, part: 3, head: heads, dim: width}, sum_over(
        {model: size}, x[batch, pos, model] * w_qkv[model, part, head, dim]) + b_qkv[part, head, dim])
    *before, mixed = _mixing(shape, qkv)
    w_out = Tensor("w_out", {head: heads, dim: width, channel: size})
    b_out = Tensor("b_out", {channel: size})
    out = sum_over({head: heads, dim: width}, mixed[batch, pos, head, dim] * w_out[head, dim, channel]) + b_out[channel]
    attended = compute("attended", {**TOKENS, channel: size}, out + x[batch, pos, channel] if residual else out)
    return [qkv, *before, mixed, attended]


def seen_by(shape: EncoderShape, query: Dim) -> Expr:
    """Count the keys that scores are computed for."""
    if not shape.causal or not shape.triangles:
        return LENGTHS(batch)
    step = shape.step or EncoderSchedule().queries
    return minimum(LENGTHS(batch), (query // step + 1) * step)


def _mixing(shape: EncoderShape, qkv: Operation | Tensor) -> list[Operation]:
    heads, width = shape.heads, shape.head_width
    keys, values = (compute(name, {batch: BATCHES(), head: heads, col: LENGTHS(batch), dim: width},
                            qkv[batch, col, number, head, dim]) for number, name in ((1, "keys"), (2, "values")))
    rows: Mapping[Dim, Expr | int] = {batch: BATCHES(), head: heads, pos: LENGTHS(batch)}
    seen = seen_by(shape, pos)
    scores = compute("scores", {**rows, col: seen}, sum_over(
        {along: width}, qkv[batch, pos, 0, head, along] * keys[batch, head, col, along]))
    score, first = scores[batch, head, pos, col], less(col, pos + 1)
    if shape.causal and not shape.triangles:
        peak = compute("peak", rows, max_over({col: seen}, where(first, score, real(-math.inf))))
    else:
        peak = compute("peak", rows, max_over({col: pos + 1 if shape.causal else seen}, score))
    weight = exp((score - peak[batch, head, pos]) * real(width**-0.5))
    weights = compute("weights", {**rows, col: seen},
                      where(first, weight, real(0.0)) if shape.causal else weight)
    total = compute("total", rows, real(1.0) / sum_over({col: seen}, weights[batch, head, pos, col]))
    mixed = compute("mixed", {**TOKENS, head: heads, dim: width}, sum_over(
        {col: seen}, weights[batch, head, pos, col] * values[batch, head, col, dim]) * total[batch, head, pos])
    return [keys, values, scores, peak, weights, total, mixed]


def _mixed(given: Program, chosen: EncoderSchedule, kept: Collection[str]) -> Program:
    """Attention by tiles of queries, everything before the mix in arrays of one tile."""
    given = split(reorder(given, "mixed", ("batch", "head", "pos")), "mixed", "pos", chosen.queries)
    given = fuse(given, "mixed", "batch", "head")
    for producer in ("total", "weights", "peak", "scores"):
        given = compute_at(given, producer, "mixed", "pos_outer", local=producer not in kept)
    for producer in ("keys", "values"):
        given = compute_at(given, producer, "mixed", "batch_head", local=True)
    given = _by_panels(given, "scores", "keys", cut="col", along="dim", size=chosen.panel)
    given = _by_panels(given, "mixed", "values", cut="dim", along="col", size=chosen.panel)
    given = split(given, "values", "dim", chosen.panel)
    for nest in ("values", "weights", "peak", "total"):
        given = vectorise(given, nest, given.nest(nest).loops[-1].name)
    return parallel(given, "mixed", "batch_head")


def _by_panels(given: Program, nest: str, operand: str, *, cut: str, along: str, size: int) -> Program:
    """Multiply a tile of a nest with one panel of an operand after the other, as which it is stored."""
    given = reorder_dimensions(split_dimension(given, operand, cut, size), operand, (
        f"{cut}_block", along, f"{cut}_within"))
    rows, _, reduction = (loop.name for loop in given.nest(nest).loops[-3:])
    tile = (rows, f"{cut}_inner", reduction)
    given = reorder(split(given, nest, cut, size), nest, (f"{cut}_outer", *tile))
    return offload(given, nest, *tile)
