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

Gradients of multi-head attention, mixed = weights v with weights = softmax(q kT / sqrt(head width)).

With the gradient d_mixed of its result, in every head of every sequence:

    d_v       = weightsT d_mixed
    d_weights = d_mixed vT
    d_scores  = weights (d_weights - delta) / sqrt(head width)        delta = sum over dim of d_mixed mixed
    d_q       = d_scores k
    d_k       = d_scoresT q

Weights are computed again from q, k and what is known of every row: its largest score `peak` and `total`, one over the
sum of its exponentials. Scores of one tile of queries exist at a time; d_k and d_v add up over the tiles.

Source: FlashAttention-2 (Dao 2023) §3.1, algorithm 2. Departure: tiles are of queries and all their keys.

Gradients of the encoder layer and of attention, from those of their results, for training.

The way forward keeps what is listed in `KEPT`. Gradients of weights have the dimensions of PyTorch's parameters, and
the weights are read in these, so the names of `encoder_layer` stand for other orders of dimensions here:

    w_qkv[part, head, dim, model]    w_out[channel, head, dim]    w_in[hidden, channel]    w_back[model, hidden]

and the gradient of a tensor t is d_t. That of the result, d_norm_2 or d_attended, is given.

    norm_2      d_fed, d_gain_2, d_shift_2                          see norm_backward
    fed         d_w_back, d_b_back, d_active = d_fed w_back where active is above 0
    active      d_w_in, d_b_in, d_norm_1 = d_active w_in + d_fed
    norm_1      d_attended, d_gain_1, d_shift_1
    attended    d_w_out, d_b_out, d_mixed = d_attended w_out
    mixed       d_qkv                                               see attention_backward
    qkv         d_w_qkv, d_b_qkv, d_x = d_qkv w_qkv + d_attended

Source: CoRa compiles the forward pass only; this is its derivative, with the same schedules.

Schedules for a GPU: a block of threads per token or row, its threads along the columns; results stay in memory.

    projections, feed-forward    a block per token, a thread per column
    scores, weights              a block per sequence, head and query, a thread per key
    peak, total, means, spreads  a thread per row that is reduced
    mix, norms                   a block per token, a thread per channel
    vgemm, trmm                  a block per row, a thread per column

So the encoder layer is one kernel for each of its operations; keys and values are read where q, k and v lie.
Source: CoRa §7.2, whose nine kernels keep scores, too. Departures: nothing is padded, and no tile is kept in shared
memory: these schedules are made to be right on any GPU, and to be improved on one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Expr
from sparloom.ragged.definition import Part, program
from sparloom.ragged.definition import part as part_of
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.layers.tokens import (
    BATCHES,
    LENGTHS,
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    col,
    define_norm,
    define_norm_gradients,
    dim,
    head,
    hidden,
    model,
    part,
    pos,
    schedule_linear,
    schedule_norm,
    schedule_norm_gradients,
    schedule_token_sum,
    schedule_weight_gradient,
    sum_over_tokens,
)
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
from sparloom.ragged.schedule.compute import compute_at, compute_with
from sparloom.ragged.schedule.loops import fuse, one_block_per_row, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import decompose_reduction, inline, narrow, offload
from sparloom.ragged.schedule.storage import reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Tensor

along = Dim("along")  # queries and keys in their product, so that no tile of it is taken for one of values


def attention(shape: EncoderShape) -> Program:
    """Define multi-head attention, unscheduled: attended = (softmax(q kT / sqrt(head width)) v) w_out + b_out.

    x[batch, pos, model], w_qkv[model, part, head, dim] with q, k, v as parts, b_qkv[part, head, dim],
    w_out[head, dim, channel], b_out[channel].
    """
    return program("attention", _define_attention(shape, residual=False))


def mixing(shape: EncoderShape) -> Program:
    """Define scaled dot-product attention, unscheduled.

    mixed[batch, pos, head, dim] of qkv[batch, pos, part, head, dim].
    """
    qkv = Tensor("qkv", {**TOKENS, part: 3, head: shape.heads, dim: shape.head_width})
    return program("mixing", _define_mixing(shape, qkv))


def encoder_layer(shape: EncoderShape) -> Program:
    """Define the whole layer, norms behind the sums, unscheduled.

    Beside the tensors of `attention`: w_in[channel, hidden], b_in[hidden], w_back[hidden, model], b_back[model];
    gain and shift of the norms: gain_1[channel], shift_1[channel], gain_2[model], shift_2[model].
    """
    *before, attended = _define_attention(shape, residual=True)
    norm_1 = define_norm(attended, "1", channel, width=shape.width, epsilon=shape.epsilon)
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
    norm_2 = define_norm(fed, "2", model, width=shape.width, epsilon=shape.epsilon)
    return program("encoder", [*before, attended, *norm_1, active, fed, *norm_2])


def scheduled_mixing(shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    """Schedule `mixing` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer`."""
    return _schedule_mixing(mixing(with_step(shape, chosen)), chosen, ())


def scheduled_attention(shape: EncoderShape, chosen: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `attention` for a CPU; `kept` and errors as in `scheduled_encoder_layer`."""
    given = schedule_linear(attention(with_step(shape, chosen)), "qkv", "dim", "model", chosen)
    given = _schedule_mixing(given, chosen, kept)
    return schedule_linear(fuse(given, "attended", "head", "dim"), "attended", "channel", "head_dim", chosen)


def scheduled_encoder_layer(shape: EncoderShape, chosen: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `encoder_layer` for a CPU.

    Args:
        kept: results that are stored as a whole, though they are needed in one place only: for gradients.

    Raises:
        IllegalSchedule: the step of a causal shape is no multiple of the tile of queries.
    """
    given = schedule_linear(encoder_layer(with_step(shape, chosen)), "qkv", "dim", "model", chosen)
    given = _schedule_mixing(given, chosen, kept)
    given = schedule_linear(fuse(given, "attended", "head", "dim"), "attended", "channel", "head_dim", chosen)
    given = schedule_linear(given, "active", "hidden", "channel", chosen)
    given = schedule_linear(given, "fed", "model", "hidden", chosen)
    for number, last in (("1", "channel"), ("2", "model")):
        given = schedule_norm(given, number, last, kept)
    return given


def with_step(shape: EncoderShape, chosen: EncoderSchedule) -> EncoderShape:
    """Let rows of a tile of queries end at the same score."""
    step = shape.step or chosen.queries
    if shape.causal and step % chosen.queries:
        raise IllegalSchedule(f"causal attention in steps of {step} with {chosen.queries} queries in a tile: use a "
                              f"multiple of {chosen.queries} as the step")
    return replace(shape, step=step)


def _define_attention(shape: EncoderShape, *, residual: bool) -> list[Operation]:
    heads, width, size = shape.heads, shape.head_width, shape.width
    x = Tensor("x", {**TOKENS, model: size})
    w_qkv = Tensor("w_qkv", {model: size, part: 3, head: heads, dim: width})
    b_qkv = Tensor("b_qkv", {part: 3, head: heads, dim: width})
    qkv = compute("qkv", {**TOKENS, part: 3, head: heads, dim: width}, sum_over(
        {model: size}, x[batch, pos, model] * w_qkv[model, part, head, dim]) + b_qkv[part, head, dim])
    *before, mixed = _define_mixing(shape, qkv)
    w_out = Tensor("w_out", {head: heads, dim: width, channel: size})
    b_out = Tensor("b_out", {channel: size})
    out = sum_over({head: heads, dim: width}, mixed[batch, pos, head, dim] * w_out[head, dim, channel]) + b_out[channel]
    attended = compute("attended", {**TOKENS, channel: size}, out + x[batch, pos, channel] if residual else out)
    return [qkv, *before, mixed, attended]


def visible_keys(shape: EncoderShape, query: Dim) -> Expr:
    """Count the keys that scores are computed for."""
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


def _schedule_mixing(given: Program, chosen: EncoderSchedule, kept: Collection[str]) -> Program:
    """Attention by tiles of queries, everything before the mix in arrays of one tile."""
    given = split(reorder(given, "mixed", ("batch", "head", "pos")), "mixed", "pos", chosen.queries)
    given = fuse(given, "mixed", "batch", "head")
    for producer in ("total", "weights", "peak", "scores"):
        given = compute_at(given, producer, "mixed", "pos_outer", local=producer not in kept)
    for producer in ("keys", "values"):
        given = compute_at(given, producer, "mixed", "batch_head", local=True)
    given = _multiply_by_panels(given, "scores", "keys", cut="col", along="dim", size=chosen.panel)
    given = _multiply_by_panels(given, "mixed", "values", cut="dim", along="col", size=chosen.panel)
    given = split(given, "values", "dim", chosen.panel)
    for nest in ("values", "weights", "peak", "total"):
        given = vectorise(given, nest, given.nest(nest).loops[-1].name)
    return parallel(given, "mixed", "batch_head")


def _multiply_by_panels(given: Program, nest: str, operand: str, *, cut: str, along: str, size: int) -> Program:
    """Multiply a tile of a nest with one panel of an operand after the other, as which it is stored."""
    given = reorder_dimensions(split_dimension(given, operand, cut, size), operand, (
        f"{cut}_block", along, f"{cut}_within"))
    rows, _, reduction = (loop.name for loop in given.nest(nest).loops[-3:])
    tile = (rows, f"{cut}_inner", reduction)
    given = reorder(split(given, nest, cut, size), nest, (f"{cut}_outer", *tile))
    return offload(given, nest, *tile)


(query,) = dims("query")


def define_mixing_gradients(shape: EncoderShape, d_mixed: Operation) -> list[Operation | Part]:
    """Define d_qkv[batch, pos, part, head, dim].

    Reads qkv and mixed, and peak and total[batch, head, pos] of the way forward.
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


def schedule_mixing_gradients(given: Program, shape: EncoderShape, *, queries: int) -> Program:
    """Schedule `mix_backward`: in parallel over sequences and heads, by tiles of queries.

    The three results share their loops, so that weights and scores are computed once, in arrays of one tile.
    """
    for name in ("d_k", "d_v"):
        given = decompose_reduction(given, name)
    for nest in ("d_q", "d_k_start", "d_k_rest", "d_v_start", "d_v_rest"):
        given = fuse(reorder(given, nest, ("batch", "head", "pos")), nest, "batch", "head")
    given = split(given, "d_q", "pos", queries)
    for name in ("d_k", "d_v"):
        given = split(given, f"{name}_rest", "query", queries)
        given = reorder(given, f"{name}_rest", ("query_outer", "pos", "dim", "query_inner"))
        if shape.causal:
            given = narrow(given, f"{name}_rest", pos)
        given = compute_with(given, f"{name}_start", "d_q", "batch_head")
        given = compute_with(given, f"{name}_rest", "d_q", "pos_outer")
    for producer in ("d_scores", "d_weights", "delta", "weights", "scores"):
        given = compute_at(given, producer, "d_q", "pos_outer", local=True)
    for producer in ("values", "keys"):
        given = compute_at(given, producer, "d_q", "batch_head", local=True)
    for nest in ("d_q", "d_k_rest", "d_v_rest", "scores", "d_weights"):
        given = offload(given, nest, *(loop.name for loop in given.nest(nest).loops[-3:]))
    for nest in ("weights", "d_scores", "delta", "d_k_start", "d_v_start"):
        given = vectorise(given, nest, given.nest(nest).loops[-1].name)
    return parallel(given, "d_q", "batch_head")


KEPT = ("peak", "total", "mean_1", "spread_1", "mean_2", "spread_2")
"""What the forward pass stores for the gradients beside what it stores anyway."""

TILE = (48, 256)  # rows and columns of a task of the gradient of weights
COLS = 64  # of a strip of a sum over tokens


def attention_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `attention`, unscheduled; outputs: d_x, then those of w_qkv, b_qkv, w_out, b_out."""
    attended = Tensor("d_attended", {**TOKENS, channel: shape.width})
    outputs = ["d_x", "d_w_qkv", "d_b_qkv", "d_w_out", "d_b_out"]
    return program("attention_backward", _define_attention_gradients(shape, attended, residual=False), outputs)


def encoder_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `encoder_layer`, unscheduled; outputs: d_x, then in the order of PyTorch's parameters."""
    size, many = shape.width, shape.hidden
    fed, attended = Tensor("fed", {**TOKENS, model: size}), Tensor("attended", {**TOKENS, channel: size})
    active, first = Tensor("active", {**TOKENS, hidden: many}), Tensor("norm_1", {**TOKENS, channel: size})
    w_back, w_in = Tensor("w_back", {model: size, hidden: many}), Tensor("w_in", {hidden: many, channel: size})
    upstream = Tensor("d_norm_2", {**TOKENS, model: size})
    norm_2 = define_norm_gradients("2", fed, upstream, last=model, width=size)
    d_fed = next(each for each in norm_2 if each.name == "d_fed")
    d_active = compute("d_active", {**TOKENS, hidden: many}, where(
        less(real(0.0), active[batch, pos, hidden]),
        sum_over({model: size}, d_fed[batch, pos, model] * w_back[model, hidden]), real(0.0)))
    d_first = compute("d_norm_1", {**TOKENS, channel: size}, sum_over(
        {hidden: many}, d_active[batch, pos, hidden] * w_in[hidden, channel]) + d_fed[batch, pos, channel])
    norm_1 = define_norm_gradients("1", attended, d_first, last=channel, width=size)
    d_attended = next(each for each in norm_1 if each.name == "d_attended")
    outputs = ["d_x", "d_w_qkv", "d_b_qkv", "d_w_out", "d_b_out", "d_w_in", "d_b_in", "d_w_back", "d_b_back",
               "d_gain_1", "d_shift_1", "d_gain_2", "d_shift_2"]
    return program("encoder_backward", [
        *norm_2,
        sum_over_tokens("d_w_back", {model: size, hidden: many}, d_fed[batch, pos, model] * active[batch, pos, hidden]),
        sum_over_tokens("d_b_back", {model: size}, d_fed[batch, pos, model]),
        d_active,
        sum_over_tokens("d_w_in", {hidden: many, channel: size},
                        d_active[batch, pos, hidden] * first[batch, pos, channel]),
        sum_over_tokens("d_b_in", {hidden: many}, d_active[batch, pos, hidden]),
        d_first, *norm_1, *_define_attention_gradients(shape, d_attended, residual=True)], outputs)


def scheduled_attention_backward(shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    """Schedule `attention_backward` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer`."""
    shape = with_step(shape, chosen)
    return _schedule_attention_gradients(attention_backward(shape), shape, chosen)


def scheduled_encoder_backward(shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    """Schedule `encoder_backward` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer`."""
    shape = with_step(shape, chosen)
    given = encoder_backward(shape)
    for number, inward in (("2", "d_fed"), ("1", "d_attended")):
        given = schedule_norm_gradients(given, number, inward, cols=COLS)
    for name, column, reduction in (("back", "hidden", "model"), ("in", "channel", "hidden")):
        given = schedule_weight_gradient(given, f"d_w_{name}", 1, tile=TILE)
        given = schedule_token_sum(given, f"d_b_{name}", cols=COLS)
        given = schedule_linear(given, "d_active" if name == "back" else "d_norm_1", column, reduction, chosen)
    return _schedule_attention_gradients(given, shape, chosen)


def _define_attention_gradients(shape: EncoderShape, d_attended: Tensor | Operation, *, residual: bool
                                ) -> list[Operation | Part]:
    """From the gradient of what comes out of attention to those of its tokens and weights."""
    size, of_head = shape.width, {head: shape.heads, dim: shape.head_width}
    of_heads = {part: 3, **of_head}
    w_out, w_qkv = Tensor("w_out", {channel: size, **of_head}), Tensor("w_qkv", {**of_heads, model: size})
    mixed, x = Tensor("mixed", {**TOKENS, **of_head}), Tensor("x", {**TOKENS, model: size})
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
        compute("d_x", {**TOKENS, model: size}, inward + d_attended[batch, pos, model] if residual else inward),
    ]


def _schedule_attention_gradients(given: Program, shape: EncoderShape, chosen: EncoderSchedule) -> Program:
    given = schedule_linear(given, "d_mixed", "dim", "channel", chosen)
    given = schedule_mixing_gradients(given, shape, queries=chosen.queries)
    given = fuse(fuse(given, "d_x", "part", "head"), "d_x", "part_head", "dim")
    given = schedule_linear(given, "d_x", "model", "part_head_dim", chosen)
    for name, outs in (("out", 1), ("qkv", 3)):
        given = schedule_weight_gradient(given, f"d_w_{name}", outs, tile=TILE)
        given = schedule_token_sum(given, f"d_b_{name}", cols=COLS)
    return given


def device_mixing(shape: EncoderShape) -> Program:
    """Schedule `mixing`."""
    return _one_kernel_each(_unstored(mixing(shape)))


def device_attention(shape: EncoderShape) -> Program:
    """Schedule `attention`."""
    return _one_kernel_each(_unstored(attention(shape)))


def device_encoder_layer(shape: EncoderShape) -> Program:
    """Schedule `encoder_layer`."""
    return _one_kernel_each(_unstored(encoder_layer(shape)))


ROW_DIMENSIONS = {"scores": 3, "peak": 3, "weights": 3, "total": 3}
"""Dimensions that name a row; of the others two, batch and pos."""


def _unstored(given: Program) -> Program:
    return inline(inline(given, "keys"), "values")


def _one_kernel_each(given: Program) -> Program:
    for nest in [nest.name for nest in given.nests()]:
        given = one_block_per_row(given, nest, ROW_DIMENSIONS.get(nest, 2))
    return given
