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
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import reduce

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr
from sparloom.ragged.definition import Part, program
from sparloom.ragged.definition import part as part_of
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.layers.precision import Operand, operand, round_for_products, schedule_operands
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
    drop,
    head,
    model,
    part,
    pos,
    schedule_elementwise,
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
    maximum,
    minimum,
    real,
    sum_over,
    where,
)
from sparloom.ragged.schedule.compute import compute_at, compute_with
from sparloom.ragged.schedule.loops import fuse, one_block_per_row, parallel, reorder, split, vectorise_innermost
from sparloom.ragged.schedule.operations import decompose_reduction, inline, narrow, offload, offload_innermost
from sparloom.ragged.schedule.storage import reorder_dimensions, split_dimension
from sparloom.ragged.tensor import Read, Tensor

along = Dim("along")  # the reduced dimension of scores; another name than `dim`, along which panels of values are split
query, distance = dims("query distance")
MOST_KEYS = 1 << 20  # of a sequence, in the index by which weights of attention are dropped
TURNED_BACK = ("d_q_back", "d_k_back")  # gradients of queries and keys before they were rotated
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


def define_qkv(shape: EncoderShape, tokens: Mapping[Dim, Expr | int], inputs: Operand | None = None) -> Operation:
    """Define qkv = x w_qkv + b_qkv over dimensions of tokens, or of other inputs than x."""
    outs = {part: 3, head: shape.heads, dim: shape.head_width}
    x = inputs or Operand(Tensor("x", {**tokens, model: shape.width}))
    return compute("qkv", {**tokens, **outs}, x.times("w_qkv", {model: shape.width}, outs) + Tensor("b_qkv", outs)[
        part, head, dim])


def define_output_projection(shape: EncoderShape, mixed: Operand, tokens: Mapping[Dim, Expr | int],
                             residual: Expr | None = None) -> Operation:
    """Define attended = mixed w_out + b_out, plus a residual if given, over dimensions of tokens."""
    outs = {channel: shape.width}
    out = mixed.times("w_out", _heads(shape), outs) + Tensor("b_out", outs)[channel]
    out = drop(shape, 1, pos, channel, out)
    return compute("attended", {**tokens, channel: shape.width}, out if residual is None else out + residual)


def _heads(shape: EncoderShape) -> dict[Dim, Expr | int]:
    return {head: shape.heads, dim: shape.head_width}


def define_attention(shape: EncoderShape, *, residual: bool, inputs: Operation | None = None) -> list[Operation]:
    """Define the operations of `attention`.

    Args:
        residual: x is added to the result.
        inputs: tokens that attend to each other, instead of x.
    """
    x = Tensor("x", {**TOKENS, model: shape.width})
    tokens = operand(shape, inputs or x, {model: shape.width})
    qkv = define_qkv(shape, TOKENS, tokens)
    mixing = _define_mixing(shape, qkv)
    mixed = operand(shape, mixing[-1], _heads(shape))
    return [*tokens.operations, qkv, *mixing, *mixed.operations, define_output_projection(
        shape, mixed, TOKENS, x[batch, pos, channel] if residual else None)]


def visible_keys(shape: EncoderShape, query: Dim) -> Expr:
    """Count the keys for which scores are computed."""
    if not shape.causal or not shape.triangles:
        return LENGTHS(batch)
    step = shape.step or EncoderSchedule().queries
    return minimum(LENGTHS(batch), (query // step + 1) * step)


def define_turned(shape: EncoderShape, qkv: Operation | Tensor) -> Operation:
    """Define turned[batch, pos, part, head, dim]: queries and keys, rotated by the positions of their tokens.

    With half of the rotated columns, for c and s in turn_cos and turn_sin[batch, pos, dim]:

        turned[dim]           = c q[dim] - s q[dim + half]
        turned[dim + half]    = c q[dim + half] + s q[dim]

    Source: Su et al. 2021, with the order of columns of GPT-NeoX.
    """
    return compute("turned", _of_turned(shape), _rotated(shape, lambda at: qkv[batch, pos, part, head, at], back=False))


def _of_turned(shape: EncoderShape) -> dict[Dim, Expr | int]:
    return {**TOKENS, part: 2, head: shape.heads, dim: shape.head_width}


def _rotated(shape: EncoderShape, read: Callable[[Expr], Read], *, back: bool) -> Expr:
    """Rotate columns, or rotate them back as gradients do."""
    half = shape.rotary // 2
    cos, sin = (Tensor(f"turn_{name}", {**TOKENS, dim: shape.rotary}) for name in ("cos", "sin"))
    later, earlier = dim + half, dim - half
    if back:
        upper, lower = (read(at) * sin[batch, pos, at] for at in (later, earlier))
    else:
        upper, lower = (read(at) * sin[batch, pos, dim] for at in (later, earlier))
    own = read(dim) * cos[batch, pos, dim]
    turned = where(less(dim, half), own + upper if back else own - upper, own - lower if back else own + lower)
    return turned if shape.rotary == shape.head_width else where(less(dim, shape.rotary), turned, read(dim))


def _added(shape: EncoderShape, row: Dim) -> Expr | None:
    """Return what is added to the score of a row and `col`."""
    if shape.linear:
        return Tensor("slopes", {head: shape.heads})[head] * real(minimum(row, col) - maximum(row, col))
    if shape.distances is None:
        return None
    sizes = {head: shape.heads, distance: shape.distances + 1}
    before, after = Tensor("bias_before", sizes), Tensor("bias_after", sizes)
    most = Const(shape.distances)
    return where(less(col, row + 1), before[head, minimum(row - col, most)], after[head, minimum(col - row, most)])


def _visible(shape: EncoderShape, row: Dim) -> Expr | None:
    """Return the condition under which a row sees `col`; None: always."""
    conditions = [less(col, row + 1)] if shape.causal else []
    if shape.window is not None:
        conditions += [less(row, col + (shape.window + 1))]
        conditions += [] if shape.causal else [less(col, row + (shape.window + 1))]
    if shape.masked:
        mask = Tensor("mask", {**TOKENS})[batch, col]
        conditions.append(Binary("or", less(real(0.0), mask), Binary("==", row, col)))
    return reduce(lambda both, other: Binary("and", both, other), conditions) if conditions else None


def _define_scores(shape: EncoderShape, axes: Mapping[Dim, Expr | int], product: Expr) -> Operation:
    """Define scores: products of queries and keys, scaled already if something is added."""
    added = _added(shape, pos)
    return compute("scores", axes, product if added is None else product * real(shape.score_scale) + added)


def _weight(shape: EncoderShape, below: Expr) -> Expr:
    """Return the weight of a score that is so far below the peak of its row."""
    scaled = shape.linear or shape.distances is not None
    return exp(below if scaled else below * real(shape.score_scale))


def _define_mixing(shape: EncoderShape, qkv: Operation | Tensor) -> list[Operation]:
    heads, width = shape.heads, shape.head_width
    turned = [define_turned(shape, qkv)] if shape.rotary else []
    source = turned[0] if turned else qkv
    keys, values = (compute(name, {batch: BATCHES(), head: heads, col: LENGTHS(batch), dim: width}, read[
        batch, col, number, head, dim]) for number, name, read in ((1, "keys", source), (2, "values", qkv)))
    rows: Mapping[Dim, Expr | int] = {batch: BATCHES(), head: heads, pos: LENGTHS(batch)}
    seen, visible = visible_keys(shape, pos), _visible(shape, pos)
    scores = _define_scores(shape, {**rows, col: seen}, sum_over(
        {along: width}, source[batch, pos, 0, head, along] * keys[batch, head, col, along]))
    score = scores[batch, head, pos, col]
    if shape.window is not None or shape.masked or (shape.causal and not shape.triangles):
        peak = compute("peak", rows, max_over({col: seen}, where(visible, score, real(-math.inf))))
    else:
        peak = compute("peak", rows, max_over({col: pos + 1 if shape.causal else seen}, score))
    weight = _weight(shape, score - peak[batch, head, pos])
    weights = compute("weights", {**rows, col: seen},
                      weight if visible is None else where(visible, weight, real(0.0)))
    total = compute("total", rows, real(1.0) / sum_over({col: seen}, weights[batch, head, pos, col]))
    dropped = [_dropped(shape, weights)] if shape.dropout[0] else []
    used = dropped[0] if dropped else weights
    mixed = compute("mixed", {**TOKENS, head: heads, dim: width}, *round_for_products(shape, sum_over(
        {col: seen}, used[batch, head, pos, col] * values[batch, head, col, dim]) * total[batch, head, pos]))
    return [*turned, keys, values, scores, peak, weights, total, *dropped, mixed]


def _dropped(shape: EncoderShape, weights: Operation) -> Operation:
    """Define the weights of attention after dropout."""
    return compute("dropped", dict(weights.output.axes), _drop_weight(shape, weights[batch, head, pos, col]))


def _drop_weight(shape: EncoderShape, weight: Expr) -> Expr:
    return drop(shape, 0, pos, head * MOST_KEYS + col, weight)


def schedule_attention(prog: Program, schedule: EncoderSchedule, kept: Collection[str]) -> Program:
    """Schedule the operations of `define_attention` for a CPU."""
    prog = schedule_operands(prog)
    prog = schedule_linear(prog, "qkv", "dim", "model", schedule)
    prog = _schedule_mixing(prog, schedule, kept)
    return schedule_linear(fuse(prog, "attended", "head", "dim"), "attended", "channel", "head_dim", schedule)


def _schedule_mixing(prog: Program, schedule: EncoderSchedule, kept: Collection[str]) -> Program:
    """Compute attention by tiles of queries; everything before the mix is an array of one tile."""
    prog = split(reorder(prog, "mixed", ("batch", "head", "pos")), "mixed", "pos", schedule.queries)
    prog = fuse(prog, "mixed", "batch", "head")
    names = {nest.name for nest in prog.nests()}
    for producer in (each for each in ("dropped", "total", "weights", "peak", "scores") if each in names):
        prog = compute_at(prog, producer, "mixed", "pos_outer", local=producer not in kept)
    for producer in ("keys", "values"):
        prog = compute_at(prog, producer, "mixed", "batch_head", local=True)
    prog = _multiply_by_panels(prog, "scores", "keys", cut="col", along="dim", size=schedule.panel)
    prog = _multiply_by_panels(prog, "mixed", "values", cut="dim", along="col", size=schedule.panel)
    prog = split(prog, "values", "dim", schedule.panel)
    if "turned" in names:
        prog = schedule_elementwise(prog, "turned")
    if "dropped" in names:
        prog = vectorise_innermost(prog, "dropped")
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
    source = Tensor("turned", _of_turned(shape)) if shape.rotary else qkv
    peak, total = Tensor("peak", rows), Tensor("total", rows)
    keys, values = (compute(name, {batch: BATCHES(), head: heads, dim: width, col: LENGTHS(batch)}, read[
        batch, col, number, head, dim]) for number, name, read in ((1, "keys", source), (2, "values", qkv)))
    seen, scale, visible = visible_keys(shape, pos), real(shape.score_scale), _visible(shape, pos)
    pairs = {**rows, col: seen}
    scores = _define_scores(shape, pairs, sum_over(
        {dim: width}, source[batch, pos, 0, head, dim] * keys[batch, head, dim, col]))
    weight = _weight(shape, scores[batch, head, pos, col] - peak[batch, head, pos]) * total[batch, head, pos]
    weights = compute("weights", pairs, weight if visible is None else where(visible, weight, real(0.0)))
    delta = compute("delta", rows, sum_over(
        {dim: width}, d_mixed[batch, pos, head, dim] * mixed[batch, pos, head, dim]))
    d_weights = compute("d_weights", pairs, sum_over(
        {dim: width}, d_mixed[batch, pos, head, dim] * values[batch, head, dim, col]))
    d_scores = compute("d_scores", pairs, weights[batch, head, pos, col] * (
        _drop_weight(shape, d_weights[batch, head, pos, col]) - delta[batch, head, pos]) * scale)
    dropped = [_dropped(shape, weights)] if shape.dropout[0] else []
    used = dropped[0] if dropped else weights
    d_qkv = Tensor("d_qkv", {**TOKENS, **of_heads})

    def over_queries(value: Expr) -> Expr:
        seeing = where(less(pos, visible_keys(shape, query)), value, real(0.0)) if shape.causal else value
        return sum_over({query: LENGTHS(batch)}, seeing)

    inward = Tensor("d_turned", _of_turned(shape)) if shape.rotary else d_qkv
    back = [part_of(name, d_qkv, {part: number}, _rotated(
        shape, lambda at, number=number: inward[batch, pos, number, head, at], back=True))
        for number, name in enumerate(TURNED_BACK)] if shape.rotary else []
    return [
        keys, values, scores, weights, *dropped, delta, d_weights, d_scores,
        part_of("d_q", inward, {part: 0}, sum_over(
            {col: seen}, d_scores[batch, head, pos, col] * source[batch, col, 1, head, dim])),
        part_of("d_k", inward, {part: 1}, over_queries(
            d_scores[batch, head, query, pos] * source[batch, query, 0, head, dim])),
        part_of("d_v", d_qkv, {part: 2}, over_queries(
            used[batch, head, query, pos] * d_mixed[batch, query, head, dim])),
        *back,
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
    dropped = ("dropped",) if shape.dropout[0] else ()
    for producer in ("d_scores", "d_weights", "delta", *dropped, "weights", "scores"):
        prog = compute_at(prog, producer, "d_q", "pos_outer", local=True)
    for producer in ("values", "keys"):
        prog = compute_at(prog, producer, "d_q", "batch_head", local=True)
    prog = offload_innermost(prog, "d_q", "d_k_rest", "d_v_rest", "scores", "d_weights")
    prog = vectorise_innermost(prog, "weights", "d_scores", "delta", "d_k_start", "d_v_start", *dropped)
    for name in TURNED_BACK if shape.rotary else ():
        prog = schedule_elementwise(prog, name)
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
    added = d_attended
    if shape.dropout[1]:
        added = compute("d_added", {**TOKENS, channel: size}, drop(
            shape, 1, pos, channel, d_attended[batch, pos, channel]))
    d_mixed = compute("d_mixed", {**TOKENS, **of_head}, sum_over(
        {channel: size}, added[batch, pos, channel] * w_out[channel, head, dim]))
    mix = define_mixing_gradients(shape, d_mixed)
    d_qkv = mix[-1].operation.output
    inward = sum_over(of_heads, d_qkv[batch, pos, part, head, dim] * w_qkv[part, head, dim, model])
    return [
        *([] if added is d_attended else [added]),
        sum_over_tokens("d_w_out", {channel: size, **of_head},
                        added[batch, pos, channel] * mixed[batch, pos, head, dim]),
        sum_over_tokens("d_b_out", {channel: size}, added[batch, pos, channel]),
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
    if shape.dropout[1]:
        prog = schedule_elementwise(prog, "d_added")
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
