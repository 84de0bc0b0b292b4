"""Gradients of multi-head attention on ragged batches, for CPU.

The gradient of a tensor t is d_t; that of the result, d_attended, is an input. Gradients of weights have the dimensions
of PyTorch's parameters, in which the backward pass also reads the weights:

    w_qkv[part, head, dim, model]    w_out[channel, head, dim]

Source: FlashAttention-2 (Dao 2023) §3.1, algorithm 2. Departures: tiles consist of queries and all their keys; scores
may have addends by distance, whose tables get gradients; CoRa has no backward pass.
"""

from __future__ import annotations

from sparloom.ir import Binary, Const, Expr
from sparloom.ragged.definition import part as part_of
from sparloom.ragged.definition import program
from sparloom.ragged.layers.attention import (
    Projected,
    define_dropped,
    define_scores,
    distance,
    drop_weight,
    query,
    read_heads,
    read_qkv,
    rotate,
    rows_of_heads,
    score_weight,
    turned_axes,
    visibility,
    visible_keys,
    with_step,
)
from sparloom.ragged.layers.norms import raised_gain
from sparloom.ragged.layers.tokens import (
    BATCHES,
    LENGTHS,
    MEMORY,
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    col,
    dim,
    drop,
    fuse_reduction,
    head,
    model,
    part,
    pos,
    schedule_elementwise,
    schedule_linear,
    schedule_parameter_gradients,
    schedule_token_sum,
    sum_over_tokens,
)
from sparloom.ragged.nests import Operation, Program, compute, less, minimum, real, sum_over, where
from sparloom.ragged.schedule.compute import compute_at, compute_with
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, vectorise_innermost
from sparloom.ragged.schedule.operations import decompose_reduction, narrow, offload_innermost
from sparloom.ragged.tensor import Tensor


def attention_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `attention`, unscheduled; outputs: d_x, then those of w_qkv, b_qkv, w_out, b_out."""
    attended = Tensor("d_attended", {**TOKENS, channel: shape.width})
    outputs = ["d_x", *projection_gradients(shape), *table_gradients(shape)]
    return program("attention_backward", define_attention_gradients(shape, attended, residual=False), outputs)


def scheduled_attention_backward(shape: EncoderShape, schedule: EncoderSchedule) -> Program:
    """Schedule `attention_backward` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer` does."""
    shape = with_step(shape, schedule)
    return schedule_attention_gradients(attention_backward(shape), shape, schedule)


def projection_gradients(shape: EncoderShape) -> list[str]:
    """Name the gradients of projections, and of the norms of heads."""
    into = ["qkv"] if shape.key_heads is None else ["q", "kv"]
    gains = ["d_gain_q", "d_gain_k"] if shape.head_norms else []
    return [f"d_{kind}_{name}" for name in (*into, "out") for kind in "wb"] + gains


def table_gradients(shape: EncoderShape) -> list[str]:
    """Name the gradients of what is added to scores."""
    return [] if shape.distances is None else ["d_bias_before", "d_bias_after"]


def _define_table_gradients(shape: EncoderShape, d_scores: Operation) -> tuple[list[Operation], list[Operation]]:
    """Define the gradients of what is added to scores, in two steps: sums by sequence, and their sums.

        d_before_each and d_after_each[batch, head, pos]    over queries and the keys `pos` tokens before or after them
    """
    if shape.distances is None:
        return [], []
    rows = rows_of_heads(shape)
    raised = real(1 / shape.score_scale)  # d_scores are the gradients of products before they are scaled
    seen, last = visible_keys(shape, query), Const(shape.distances)
    pairs = {"before": (less(pos, query + 1), query - pos),
             "after": (Binary("and", less(0, pos), less(pos, seen - query)), query + pos)}
    each = {name: compute(f"d_{name}_each", rows, sum_over(
        {query: LENGTHS(batch)}, where(exists, d_scores[batch, head, query, key], real(0.0))))
        for name, (exists, key) in pairs.items()}
    return list(each.values()), [
        sum_over_tokens(f"d_bias_{name}", {head: shape.heads, distance: shape.distances + 1}, where(
            Binary("==", minimum(pos, last), distance), one[(*rows,)] * raised, real(0.0)))
        for name, one in each.items()]


def define_mixing_gradients(shape: EncoderShape, d_mixed: Operation, read: Projected | None = None
                            ) -> list[Operation]:
    """Define d_qkv[batch, pos, part, head, dim], the gradient of mixed = weights v, weights = softmax(q kT /
    sqrt(width)); of cross attention, d_q[batch, pos, head, dim] and d_kv[batch, pos, part, head, dim].

        d_v       = weightsT d_mixed
        d_weights = d_mixed vT
        d_scores  = weights (d_weights - delta) / sqrt(head width)        delta = sum over dim of d_mixed mixed
        d_q       = d_scores k
        d_k       = d_scoresT q

    Reads queries, keys and values, by default of qkv, mixed, and of the forward pass peak and total[batch, head, pos]:
    the largest score of a row, and one over the sum of its exponentials, from which the weights are recomputed.
    """
    width, rows = shape.head_width, rows_of_heads(shape)
    row = (*rows,)
    qkv, mixed = Tensor("qkv", {**TOKENS, **shape.of_parts}), Tensor("mixed", {**TOKENS, **shape.of_heads})
    if read is None and shape.key_heads is not None:
        read = _read_turned(shape)
    read = read or read_qkv(Tensor("turned", turned_axes(shape)) if shape.rotary else qkv, qkv)
    peak, total = Tensor("peak", rows), Tensor("total", rows)
    of_keys = {batch: BATCHES(), **shape.of_heads, col: shape.keys}
    keys, values = (compute(name, of_keys, each(col))
                    for name, each in (("keys", read.key), ("values", read.value)))
    seen, scale, visible = visible_keys(shape, pos), real(shape.score_scale), visibility(shape, pos)
    pairs = {**rows, col: seen}
    scores = define_scores(shape, pairs, sum_over(
        {dim: width}, read.query(pos, dim) * keys[batch, head, dim, col]))
    weight = score_weight(shape, scores[(*row, col)] - peak[row]) * total[row]
    weights = compute("weights", pairs, weight if visible is None else where(visible, weight, real(0.0)))
    delta = compute("delta", rows, sum_over(
        {dim: width}, d_mixed[batch, pos, head, dim] * mixed[batch, pos, head, dim]))
    d_weights = compute("d_weights", pairs, sum_over(
        {dim: width}, d_mixed[batch, pos, head, dim] * values[batch, head, dim, col]))
    d_scores = compute("d_scores", pairs, weights[(*row, col)] * (
        drop_weight(shape, d_weights[(*row, col)]) - delta[row]) * scale)
    dropped = [define_dropped(shape, weights)] if shape.dropout[0] else []
    used = dropped[0] if dropped else weights

    def over_queries(value: Expr) -> Expr:
        seeing = where(less(pos, visible_keys(shape, query)), value, real(0.0)) if shape.causal else value
        return sum_over({query: LENGTHS(batch)}, seeing)

    d_queries = sum_over({col: seen}, d_scores[(*row, col)] * read.key(col))
    d_keys = over_queries(d_scores[batch, head, query, pos] * read.query(query, dim))
    d_q, d_k, d_v, back = _define_inward(shape, d_queries, d_keys, over_queries(
        used[batch, head, query, pos] * d_mixed[batch, query, head, dim]))
    each, sums = _define_table_gradients(shape, d_scores)
    return [keys, values, scores, weights, *dropped, delta, d_weights, d_scores, d_q, d_k, d_v, *each, *back, *sums]


def d_kv(shape: EncoderShape) -> Tensor:
    """Return the gradient of keys and values that have a projection of their own."""
    return Tensor("d_kv", {**(MEMORY if shape.cross else TOKENS), **shape.of_keys})


def _define_inward(shape: EncoderShape, d_queries: Expr, d_keys: Expr, d_values: Expr
                   ) -> tuple[Operation, Operation, Operation, list[Operation]]:
    """Define d_q, d_k and d_v, and what is made of them.

    They are parts of d_qkv, or, queries and keys that were rotated, of d_turned, of which d_qkv is made; if keys are
    those of the memory, d_k and d_v are parts of d_kv. Where heads share keys, they belong to heads of queries, and
    d_queries and d_kv are made of them.
    """
    of_heads = {**TOKENS, **shape.of_heads}
    if shape.cross:
        return (compute("d_q", of_heads, d_queries), part_of("d_k", d_kv(shape), {part: 0}, d_keys),
                part_of("d_v", d_kv(shape), {part: 1}, d_values), [])
    if shape.key_heads is not None:
        d_q, d_k, d_v = (compute(name, of_heads, value) for name, value in (
            ("d_q", d_queries), ("d_k", d_keys), ("d_v", d_values)))
        return d_q, d_k, d_v, _define_head_gradients(shape, d_q, d_k, d_v)
    inward = d_qkv = Tensor("d_qkv", {**TOKENS, **shape.of_parts})
    back = []
    if shape.rotary:
        inward = Tensor("d_turned", turned_axes(shape))
        back = [part_of(f"d_{name}_back", d_qkv, {part: number}, rotate(
            shape, lambda at, number=number: inward[batch, pos, number, head, at], back=True))
            for number, name in enumerate("qk")]
    return (part_of("d_q", inward, {part: 0}, d_queries), part_of("d_k", inward, {part: 1}, d_keys),
            part_of("d_v", d_qkv, {part: 2}, d_values), back)


def _read_turned(shape: EncoderShape) -> Projected:
    turned_q, turned_k = (Tensor(f"turned_{name}", {**TOKENS, head: heads, dim: shape.head_width})
                          for name, heads in (("q", shape.heads), ("k", shape.key_heads)))
    return read_heads(shape, turned_q, lambda at, which: turned_k[batch, at, which, dim], _kv(shape))


def _kv(shape: EncoderShape) -> Tensor:
    return Tensor("kv", {**TOKENS, **shape.of_keys})


def _define_head_gradients(shape: EncoderShape, d_q: Operation, d_k: Operation, d_v: Operation) -> list[Operation]:
    """Define d_queries and d_kv, and the gradients of the norms of heads, of gradients by heads of queries.

        d_.._shared[batch, pos, head, dim]    sums over the heads of queries that share a head of keys
        d_.._normal[batch, pos, head, dim]    rotated back

    For the gradients of norms see `sparloom.ragged.layers.norms`.
    """
    queries, kv = Tensor("queries", {**TOKENS, **shape.of_heads}), _kv(shape)
    d_k, d_v = (_define_shared(shape, each) for each in (d_k, d_v))
    made = [each for each in (d_k, d_v) if each.name.endswith("_shared")]
    for short, heads, upstream, source in (("q", shape.heads, d_q, queries[batch, pos, head, dim]),
                                           ("k", shape.key_heads, d_k, kv[batch, pos, 0, head, dim])):
        value, of_heads = rotate(shape, lambda at, upstream=upstream: upstream[batch, pos, head, at], back=True), {
            **TOKENS, head: heads}
        if shape.head_norms:
            of_head, row = {dim: shape.head_width}, (batch, pos, head)
            normal = compute(f"d_{short}_normal", {**of_heads, **of_head}, value)
            gain = raised_gain(Tensor(f"gain_{short}", of_head)[dim], shape.norm)
            spread = Tensor(f"spread_{short}", of_heads)[row]
            across = compute(f"across_{short}", of_heads, sum_over(
                of_head, normal[(*row, dim)] * gain * source) * real(1 / shape.head_width) * spread * spread)
            each = compute(f"d_{short}_gains", {**TOKENS, **of_head}, sum_over(
                {head: heads}, normal[(*row, dim)] * source * spread))
            made += [normal, across, each, sum_over_tokens(f"d_gain_{short}", of_head, each[batch, pos, dim])]
            value = spread * (normal[(*row, dim)] * gain - source * across[row])
        made.append(compute("d_queries", {**TOKENS, **shape.of_heads}, value) if short == "q"
                    else part_of("d_k_back", d_kv(shape), {part: 0}, value))
    return [*made, part_of("d_v_back", d_kv(shape), {part: 1}, d_v[batch, pos, head, dim])]


def _define_shared(shape: EncoderShape, of_queries: Operation) -> Operation:
    group = shape.heads // shape.key_heads
    if group == 1:
        return of_queries
    here = Binary("==", query // group, head)
    return compute(f"{of_queries.name}_shared", {**TOKENS, head: shape.key_heads, dim: shape.head_width}, sum_over(
        {query: shape.heads}, where(here, of_queries[batch, pos, query, dim], real(0.0))))


def _schedule_head_gradients(prog: Program) -> Program:
    """Schedule the operations of `_define_head_gradients`: a token at a time."""
    names = {nest.name for nest in prog.nests()}
    for name in (each for each in ("d_k_shared", "d_v_shared", "d_q_gains", "d_k_gains") if each in names):
        *before, last, reduction = (loop.name for loop in prog.nest(name).loops)
        prog = schedule_elementwise(reorder(prog, name, (*before, reduction, last)), name)
    for name in (each for each in ("d_q_normal", "d_k_normal", "d_queries", "d_q_back", "d_k_back", "d_v_back")
                 if each in names):
        prog = schedule_elementwise(prog, name)
    for short in "qk" if "across_q" in names else "":
        prog = schedule_elementwise(prog, f"across_{short}")
        prog = schedule_token_sum(prog, f"d_gain_{short}")
    return prog


def schedule_mixing_gradients(prog: Program, shape: EncoderShape, *, queries: int) -> Program:
    """Schedule `define_mixing_gradients`: in parallel over sequences and heads, by tiles of queries.

    The three results share their loops, so that weights and scores are computed once, in arrays of one tile; d_k and
    d_v accumulate over the tiles.
    """
    for name in ("d_k", "d_v"):
        prog = decompose_reduction(prog, name)
    prog = reorder(prog, "d_q", ("batch", "head", "pos"))
    for nest in ("d_k_start", "d_k_rest", "d_v_start", "d_v_rest"):
        prog = reorder(prog, nest, ("batch", "head", "pos"))
    for nest in ("d_q", "d_k_start", "d_k_rest", "d_v_start", "d_v_rest"):
        prog = fuse(prog, nest, "batch", "head")
    prog = split(prog, "d_q", "pos", queries)
    for name in ("d_k", "d_v"):
        prog = split(prog, f"{name}_rest", "query", queries)
        prog = reorder(prog, f"{name}_rest", ("query_outer", "pos", "dim", "query_inner"))
        if shape.causal:
            prog = narrow(prog, f"{name}_rest", pos)
        prog = compute_with(prog, f"{name}_start", "d_q", "batch_head")
        prog = compute_with(prog, f"{name}_rest", "d_q", "pos_outer")
    prog = _schedule_table_gradients(prog, shape, queries)
    dropped = ("dropped",) if shape.dropout[0] else ()
    for producer in ("d_scores", "d_weights", "delta", *dropped, "weights", "scores"):
        prog = compute_at(prog, producer, "d_q", "pos_outer", local=True)
    for producer in ("values", "keys"):
        prog = compute_at(prog, producer, "d_q", "batch_head", local=True)
    prog = offload_innermost(prog, "d_q", "d_k_rest", "d_v_rest", "scores", "d_weights")
    prog = vectorise_innermost(prog, "weights", "d_scores", "delta", "d_k_start", "d_v_start", *dropped)
    prog = _schedule_head_gradients(prog)
    return parallel(prog, "d_q", "batch_head")


def _schedule_table_gradients(prog: Program, shape: EncoderShape, queries: int) -> Program:
    """Sum gradients of scores by distance in the loops of `d_q`, and over sequences afterwards."""
    for name in () if shape.distances is None else ("before", "after"):
        each = f"d_{name}_each"
        prog = decompose_reduction(prog, each)
        for nest in (f"{each}_start", f"{each}_rest"):
            prog = fuse(prog, nest, "batch", "head")
        prog = split(prog, f"{each}_rest", "query", queries)
        prog = reorder(prog, f"{each}_rest", ("query_outer", "query_inner", "pos"))
        prog = compute_with(prog, f"{each}_start", "d_q", "batch_head")
        prog = compute_with(prog, f"{each}_rest", "d_q", "pos_outer")
        prog = vectorise_innermost(prog, f"{each}_start", f"{each}_rest")
    for name in table_gradients(shape):
        prog = schedule_token_sum(prog, name)
    return prog


def define_output_gradients(shape: EncoderShape, d_attended: Tensor | Operation) -> list[Operation]:
    """Define the gradients of the output projection; the last one is d_mixed, that of what it projects."""
    size, of_head = shape.width, shape.of_heads
    w_out, mixed = Tensor("w_out", {channel: size, **of_head}), Tensor("mixed", {**TOKENS, **of_head})
    added = [compute("d_added", {**TOKENS, channel: size}, drop(
        shape, 1, pos, channel, d_attended[batch, pos, channel]))] if shape.dropout[1] else []
    d_added = (added[0] if added else d_attended)[batch, pos, channel]
    return [
        *added, sum_over_tokens("d_w_out", {channel: size, **of_head}, d_added * mixed[(batch, pos, *of_head)]),
        sum_over_tokens("d_b_out", {channel: size}, d_added),
        compute("d_mixed", {**TOKENS, **of_head}, sum_over({channel: size}, d_added * w_out[(channel, *of_head)])),
    ]


def define_attention_gradients(shape: EncoderShape, d_attended: Tensor | Operation, *, residual: bool,
                               inputs: str = "x") -> list[Operation]:
    """Define the gradients of tokens and weights from that of the result of attention.

    Args:
        residual: the gradient of the result is added to that of the tokens.
        inputs: name of the tokens that attend to each other.
    """
    size, projection = shape.width, define_output_gradients(shape, d_attended)
    x, found = Tensor(inputs, {**TOKENS, model: size}), [*projection, *define_mixing_gradients(shape, projection[-1])]
    projected = [("qkv", "d_qkv", shape.of_parts)] if shape.key_heads is None else [
        ("kv", "d_kv", shape.of_keys), ("q", "d_queries", shape.of_heads)]
    added = d_attended[batch, pos, model] if residual else None
    for name, gradient, outs in projected:
        upstream = Tensor(gradient, {**TOKENS, **outs})[(batch, pos, *outs)]
        inward = sum_over(outs, upstream * Tensor(f"w_{name}", {**outs, model: size})[(*outs, model)])
        found += [
            sum_over_tokens(f"d_w_{name}", {**outs, model: size}, upstream * x[batch, pos, model]),
            sum_over_tokens(f"d_b_{name}", outs, upstream),
            compute(f"d_{inputs}_kv" if name == "kv" else f"d_{inputs}", {**TOKENS, model: size},
                    inward if added is None else inward + added)]
        added = found[-1][batch, pos, model]
    return found


def schedule_attention_gradients(prog: Program, shape: EncoderShape, schedule: EncoderSchedule, inputs: str = "x"
                                 ) -> Program:
    """Schedule the operations of `define_attention_gradients` for a CPU."""
    if shape.dropout[1]:
        prog = schedule_elementwise(prog, "d_added")
    prog = schedule_linear(prog, "d_mixed", "dim", "channel", schedule)
    prog = schedule_mixing_gradients(prog, shape, queries=schedule.queries)
    for inward in (f"d_{inputs}",) if shape.key_heads is None else (f"d_{inputs}_kv", f"d_{inputs}"):
        prog, reduction = fuse_reduction(prog, inward)
        prog = schedule_linear(prog, inward, "model", reduction, schedule)
    into = {"qkv": 3} if shape.key_heads is None else {"q": 2, "kv": 3}
    return schedule_parameter_gradients(prog, {"out": 1, **into})
