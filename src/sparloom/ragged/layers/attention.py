"""Multi-head attention on ragged batches, forward and backward, for CPU and GPU.

Tokens of all sequences are stored one after the other, x[batch, pos, model]; nothing is padded. On a CPU:

    projections    tiles of tokens, one panel of weights after the other; weights are stored in panels
    attention      in parallel over sequences and heads; keys and values of a head are copied into panels; scores, their
                   softmax and the mix of a tile of queries are local arrays

The gradient of a tensor t is d_t; that of the result, d_attended, is an input. Gradients of weights have the dimensions
of PyTorch's parameters, in which the backward pass also reads the weights:

    w_qkv[part, head, dim, model]    w_out[channel, head, dim]

On a GPU a block of threads computes a token, or the row of a query in attention; its threads compute the columns, or
one thread the value to which a row is reduced. All results are stored.

Source: CoRa §7.2, Figure 3; FlashAttention-2 (Dao 2023) §3.1, algorithm 2. Departures: bulk and partial padding are not
needed, since tile products may have any extent; the three kernels of attention are one; CoRa has no backward pass.
Backward, tiles consist of queries and all their keys. On a GPU nothing is padded, each operation is a kernel, and no
tile is in shared memory: these schedules are correct on any GPU, and not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Expr
from sparloom.ragged.definition import Part, program
from sparloom.ragged.definition import part as part_of
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.layers.tokens import (
    BATCHES,
    LENGTHS,
    TILE,
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    col,
    dim,
    head,
    model,
    part,
    pos,
    schedule_linear,
    schedule_token_sum,
    schedule_weight_gradient,
    sum_over_tokens,
)
from sparloom.ragged.nests import (
    Operation,
    Program,
    compute,
    exp,
    less,
    max_over,
    minimum,
    real,
    sum_over,
    where,
)
from sparloom.ragged.schedule.compute import compute_at, compute_with
from sparloom.ragged.schedule.loops import fuse, one_block_per_row, parallel, reorder, split, vectorise_innermost
from sparloom.ragged.schedule.operations import decompose_reduction, inline, narrow, offload, offload_innermost
from sparloom.ragged.schedule.storage import reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Tensor

along = Dim("along")  # the reduced dimension of scores; another name than `dim`, along which panels of values are split
query = Dim("query")
ROW_DIMENSIONS = {"scores": 3, "peak": 3, "weights": 3, "total": 3}  # on a GPU; other rows are tokens: 2


def attention(shape: EncoderShape) -> Program:
    """Define multi-head attention, unscheduled: attended = (softmax(q kT / sqrt(head width)) v) w_out + b_out.

    Inputs are x[batch, pos, model], w_qkv[model, part, head, dim] with parts q, k and v, b_qkv[part, head, dim],
    w_out[head, dim, channel] and b_out[channel].
    """
    return program("attention", define_attention(shape, residual=False))


def mixing(shape: EncoderShape) -> Program:
    """Define scaled dot-product attention, unscheduled: mixed[batch, pos, head, dim] of qkv[batch, pos, part, head,
    dim].
    """
    return program("mixing", _define_mixing(
        shape, Tensor("qkv", {**TOKENS, part: 3, head: shape.heads, dim: shape.head_width})))


def scheduled_mixing(shape: EncoderShape, schedule: EncoderSchedule) -> Program:
    """Schedule `mixing` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer` does."""
    return _schedule_mixing(mixing(with_step(shape, schedule)), schedule, ())


def scheduled_attention(shape: EncoderShape, schedule: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `attention` for a CPU; `kept` and errors as in `scheduled_encoder_layer`."""
    return schedule_attention(attention(with_step(shape, schedule)), schedule, kept)


def with_step(shape: EncoderShape, schedule: EncoderSchedule) -> EncoderShape:
    """Set the step, so that all rows of a tile of queries end at the same score."""
    step = shape.step or schedule.queries
    if shape.causal and step % schedule.queries:
        raise IllegalSchedule(f"causal attention in steps of {step} with {schedule.queries} queries in a tile: use a "
                              f"multiple of {schedule.queries} as the step")
    return replace(shape, step=step)


def define_qkv(shape: EncoderShape, tokens: Mapping[Dim, Expr | int], inputs: Operation | None = None) -> Operation:
    """Define qkv = x w_qkv + b_qkv over dimensions of tokens, or of other inputs than x."""
    weights = {part: 3, head: shape.heads, dim: shape.head_width}
    x, b_qkv = inputs or Tensor("x", {**tokens, model: shape.width}), Tensor("b_qkv", weights)
    w_qkv = Tensor("w_qkv", {model: shape.width, **weights})
    return compute("qkv", {**tokens, **weights}, sum_over(
        {model: shape.width}, x[batch, pos, model] * w_qkv[model, part, head, dim]) + b_qkv[part, head, dim])


def define_output_projection(shape: EncoderShape, mixed: Operation | Tensor, tokens: Mapping[Dim, Expr | int],
                             residual: Expr | None = None) -> Operation:
    """Define attended = mixed w_out + b_out, plus a residual if given, over dimensions of tokens."""
    heads = {head: shape.heads, dim: shape.head_width}
    w_out, b_out = Tensor("w_out", {**heads, channel: shape.width}), Tensor("b_out", {channel: shape.width})
    out = sum_over(heads, mixed[batch, pos, head, dim] * w_out[head, dim, channel]) + b_out[channel]
    return compute("attended", {**tokens, channel: shape.width}, out if residual is None else out + residual)


def define_attention(shape: EncoderShape, *, residual: bool, inputs: Operation | None = None) -> list[Operation]:
    """Define the operations of `attention`.

    Args:
        residual: x is added to the result.
        inputs: tokens that attend to each other, instead of x.
    """
    qkv = define_qkv(shape, TOKENS, inputs)
    *before, mixed = _define_mixing(shape, qkv)
    x = Tensor("x", {**TOKENS, model: shape.width})[batch, pos, channel]
    return [qkv, *before, mixed, define_output_projection(shape, mixed, TOKENS, x if residual else None)]


def visible_keys(shape: EncoderShape, query: Dim) -> Expr:
    """Count the keys for which scores are computed."""
    if not shape.causal or not shape.triangles:
        return LENGTHS(batch)
    step = shape.step or EncoderSchedule().queries
    return minimum(LENGTHS(batch), (query // step + 1) * step)


def _define_mixing(shape: EncoderShape, qkv: Operation | Tensor) -> list[Operation]:
    heads, width = shape.heads, shape.head_width
    keys, values = (compute(name, {batch: BATCHES(), head: heads, col: LENGTHS(batch), dim: width},
                            qkv[batch, col, number, head, dim]) for number, name in ((1, "keys"), (2, "values")))
    rows: Mapping[Dim, Expr | int] = {batch: BATCHES(), head: heads, pos: LENGTHS(batch)}
    seen = visible_keys(shape, pos)
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


def schedule_attention(prog: Program, schedule: EncoderSchedule, kept: Collection[str]) -> Program:
    """Schedule the operations of `define_attention` for a CPU."""
    prog = schedule_linear(prog, "qkv", "dim", "model", schedule)
    prog = _schedule_mixing(prog, schedule, kept)
    return schedule_linear(fuse(prog, "attended", "head", "dim"), "attended", "channel", "head_dim", schedule)


def _schedule_mixing(prog: Program, schedule: EncoderSchedule, kept: Collection[str]) -> Program:
    """Compute attention by tiles of queries; everything before the mix is an array of one tile."""
    prog = split(reorder(prog, "mixed", ("batch", "head", "pos")), "mixed", "pos", schedule.queries)
    prog = fuse(prog, "mixed", "batch", "head")
    for producer in ("total", "weights", "peak", "scores"):
        prog = compute_at(prog, producer, "mixed", "pos_outer", local=producer not in kept)
    for producer in ("keys", "values"):
        prog = compute_at(prog, producer, "mixed", "batch_head", local=True)
    prog = _multiply_by_panels(prog, "scores", "keys", cut="col", along="dim", size=schedule.panel)
    prog = _multiply_by_panels(prog, "mixed", "values", cut="dim", along="col", size=schedule.panel)
    prog = split(prog, "values", "dim", schedule.panel)
    return parallel(vectorise_innermost(prog, "values", "weights", "peak", "total"), "mixed", "batch_head")


def _multiply_by_panels(prog: Program, nest: str, operand: str, *, cut: str, along: str, size: int) -> Program:
    """Store an operand in panels, and multiply a tile of the nest by one panel after the other."""
    prog = reorder_dimensions(split_dimension(prog, operand, cut, size), operand, (
        f"{cut}_block", along, f"{cut}_within"))
    rows, _, reduction = (loop.name for loop in prog.nest(nest).loops[-3:])
    tile = (rows, f"{cut}_inner", reduction)
    prog = reorder(split(prog, nest, cut, size), nest, (f"{cut}_outer", *tile))
    return offload(prog, nest, *tile)


def attention_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `attention`, unscheduled; outputs: d_x, then those of w_qkv, b_qkv, w_out, b_out."""
    attended = Tensor("d_attended", {**TOKENS, channel: shape.width})
    outputs = ["d_x", "d_w_qkv", "d_b_qkv", "d_w_out", "d_b_out"]
    return program("attention_backward", define_attention_gradients(shape, attended, residual=False), outputs)


def scheduled_attention_backward(shape: EncoderShape, schedule: EncoderSchedule) -> Program:
    """Schedule `attention_backward` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer` does."""
    shape = with_step(shape, schedule)
    return schedule_attention_gradients(attention_backward(shape), shape, schedule)


def define_mixing_gradients(shape: EncoderShape, d_mixed: Operation) -> list[Operation | Part]:
    """Define d_qkv[batch, pos, part, head, dim], the gradient of mixed = weights v, weights = softmax(q kT /
    sqrt(width)).

        d_v       = weightsT d_mixed
        d_weights = d_mixed vT
        d_scores  = weights (d_weights - delta) / sqrt(head width)        delta = sum over dim of d_mixed mixed
        d_q       = d_scores k
        d_k       = d_scoresT q

    Reads qkv and mixed, and peak and total[batch, head, pos] of the forward pass: the largest score of a row, and one
    over the sum of its exponentials, from which the weights are recomputed.
    """
    heads, width = shape.heads, shape.head_width
    of_heads = {part: 3, head: heads, dim: width}
    rows = {batch: BATCHES(), head: heads, pos: LENGTHS(batch)}
    qkv, mixed = Tensor("qkv", {**TOKENS, **of_heads}), Tensor("mixed", {**TOKENS, head: heads, dim: width})
    peak, total = Tensor("peak", rows), Tensor("total", rows)
    keys, values = (compute(name, {batch: BATCHES(), head: heads, dim: width, col: LENGTHS(batch)},
                            qkv[batch, col, number, head, dim]) for number, name in ((1, "keys"), (2, "values")))
    seen, scale = visible_keys(shape, pos), real(width**-0.5)
    pairs = {**rows, col: seen}
    scores = compute("scores", pairs, sum_over(
        {dim: width}, qkv[batch, pos, 0, head, dim] * keys[batch, head, dim, col]))
    weight = exp((scores[batch, head, pos, col] - peak[batch, head, pos]) * scale) * total[batch, head, pos]
    weights = compute("weights", pairs, where(less(col, pos + 1), weight, real(0.0)) if shape.causal else weight)
    delta = compute("delta", rows, sum_over(
        {dim: width}, d_mixed[batch, pos, head, dim] * mixed[batch, pos, head, dim]))
    d_weights = compute("d_weights", pairs, sum_over(
        {dim: width}, d_mixed[batch, pos, head, dim] * values[batch, head, dim, col]))
    d_scores = compute("d_scores", pairs, weights[batch, head, pos, col] * (
        d_weights[batch, head, pos, col] - delta[batch, head, pos]) * scale)
    d_qkv = Tensor("d_qkv", {**TOKENS, **of_heads})

    def over_queries(value: Expr) -> Expr:
        seeing = where(less(pos, visible_keys(shape, query)), value, real(0.0)) if shape.causal else value
        return sum_over({query: LENGTHS(batch)}, seeing)

    return [
        keys, values, scores, weights, delta, d_weights, d_scores,
        part_of("d_q", d_qkv, {part: 0}, sum_over(
            {col: seen}, d_scores[batch, head, pos, col] * qkv[batch, col, 1, head, dim])),
        part_of("d_k", d_qkv, {part: 1}, over_queries(
            d_scores[batch, head, query, pos] * qkv[batch, query, 0, head, dim])),
        part_of("d_v", d_qkv, {part: 2}, over_queries(
            weights[batch, head, query, pos] * d_mixed[batch, query, head, dim])),
    ]


def schedule_mixing_gradients(prog: Program, shape: EncoderShape, *, queries: int) -> Program:
    """Schedule `define_mixing_gradients`: in parallel over sequences and heads, by tiles of queries.

    The three results share their loops, so that weights and scores are computed once, in arrays of one tile; d_k and
    d_v accumulate over the tiles.
    """
    for name in ("d_k", "d_v"):
        prog = decompose_reduction(prog, name)
    for nest in ("d_q", "d_k_start", "d_k_rest", "d_v_start", "d_v_rest"):
        prog = fuse(reorder(prog, nest, ("batch", "head", "pos")), nest, "batch", "head")
    prog = split(prog, "d_q", "pos", queries)
    for name in ("d_k", "d_v"):
        prog = split(prog, f"{name}_rest", "query", queries)
        prog = reorder(prog, f"{name}_rest", ("query_outer", "pos", "dim", "query_inner"))
        if shape.causal:
            prog = narrow(prog, f"{name}_rest", pos)
        prog = compute_with(prog, f"{name}_start", "d_q", "batch_head")
        prog = compute_with(prog, f"{name}_rest", "d_q", "pos_outer")
    for producer in ("d_scores", "d_weights", "delta", "weights", "scores"):
        prog = compute_at(prog, producer, "d_q", "pos_outer", local=True)
    for producer in ("values", "keys"):
        prog = compute_at(prog, producer, "d_q", "batch_head", local=True)
    prog = offload_innermost(prog, "d_q", "d_k_rest", "d_v_rest", "scores", "d_weights")
    prog = vectorise_innermost(prog, "weights", "d_scores", "delta", "d_k_start", "d_v_start")
    return parallel(prog, "d_q", "batch_head")


def define_attention_gradients(shape: EncoderShape, d_attended: Tensor | Operation, *, residual: bool,
                               inputs: str = "x") -> list[Operation | Part]:
    """Define the gradients of tokens and weights from that of the result of attention.

    Args:
        residual: the gradient of the result is added to that of the tokens.
        inputs: name of the tokens that attend to each other.
    """
    size, of_head = shape.width, {head: shape.heads, dim: shape.head_width}
    of_heads = {part: 3, **of_head}
    w_out, w_qkv = Tensor("w_out", {channel: size, **of_head}), Tensor("w_qkv", {**of_heads, model: size})
    mixed, x = Tensor("mixed", {**TOKENS, **of_head}), Tensor(inputs, {**TOKENS, model: size})
    d_mixed = compute("d_mixed", {**TOKENS, **of_head}, sum_over(
        {channel: size}, d_attended[batch, pos, channel] * w_out[channel, head, dim]))
    mix = define_mixing_gradients(shape, d_mixed)
    d_qkv = mix[-1].operation.output
    inward = sum_over(of_heads, d_qkv[batch, pos, part, head, dim] * w_qkv[part, head, dim, model])
    return [
        sum_over_tokens("d_w_out", {channel: size, **of_head},
                        d_attended[batch, pos, channel] * mixed[batch, pos, head, dim]),
        sum_over_tokens("d_b_out", {channel: size}, d_attended[batch, pos, channel]),
        d_mixed, *mix,
        sum_over_tokens("d_w_qkv", {**of_heads, model: size},
                        d_qkv[batch, pos, part, head, dim] * x[batch, pos, model]),
        sum_over_tokens("d_b_qkv", of_heads, d_qkv[batch, pos, part, head, dim]),
        compute(f"d_{inputs}", {**TOKENS, model: size},
                inward + d_attended[batch, pos, model] if residual else inward),
    ]


def schedule_attention_gradients(prog: Program, shape: EncoderShape, schedule: EncoderSchedule, inputs: str = "x"
                                 ) -> Program:
    """Schedule the operations of `define_attention_gradients` for a CPU."""
    prog = schedule_linear(prog, "d_mixed", "dim", "channel", schedule)
    prog = schedule_mixing_gradients(prog, shape, queries=schedule.queries)
    inward = f"d_{inputs}"
    prog = fuse(fuse(prog, inward, "part", "head"), inward, "part_head", "dim")
    prog = schedule_linear(prog, inward, "model", "part_head_dim", schedule)
    for name, outs in (("out", 1), ("qkv", 3)):
        prog = schedule_weight_gradient(prog, f"d_w_{name}", outs, tile=TILE)
        prog = schedule_token_sum(prog, f"d_b_{name}")
    return prog


def device_mixing(shape: EncoderShape) -> Program:
    """Schedule `mixing` for a GPU."""
    return schedule_on_device(mixing(shape))


def device_attention(shape: EncoderShape) -> Program:
    """Schedule `attention` for a GPU."""
    return schedule_on_device(attention(shape))


def schedule_on_device(prog: Program) -> Program:
    """Make one kernel for each operation; keys and values are read from qkv."""
    prog = inline(inline(prog, "keys"), "values")
    for nest in [nest.name for nest in prog.nests()]:
        prog = one_block_per_row(prog, nest, ROW_DIMENSIONS.get(nest, 2))
    return prog
