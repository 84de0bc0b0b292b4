"""Gradients of multi-head attention, mixed = weights v with weights = softmax(q kT / sqrt(head width)).

With the gradient d_mixed of its result, in every head of every sequence:

    d_v       = weightsT d_mixed
    d_weights = d_mixed vT
    d_scores  = weights (d_weights - delta) / sqrt(head width)        delta = sum over dim of d_mixed mixed
    d_q       = d_scores k
    d_k       = d_scoresT q

Weights are computed again from q, k and what is known of every row: its largest score `peak` and `total`, one over the
sum of its exponentials. Scores of one tile of queries exist at a time; d_k and d_v add up over the tiles.

Source: FlashAttention-2 (Dao 2023) §3.1, algorithm 2. Departure: tiles are of queries and all their keys.
"""

from __future__ import annotations

from sparloom.ir import Expr
from sparloom.ragged.definition import Part
from sparloom.ragged.definition import part as part_of
from sparloom.ragged.dimensions import dims
from sparloom.ragged.encoder import seen_by
from sparloom.ragged.program import Operation, Program, compute, exp, less, real, sum_over, where
from sparloom.ragged.schedule.compute import compute_at, compute_with
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split, vectorise
from sparloom.ragged.schedule.operations import decompose_reduction, narrow, offload
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tokens import BATCHES, LENGTHS, TOKENS, EncoderShape, batch, col, dim, head, part, pos

__all__ = ["mix_backward", "scheduled_mix_backward"]

(query,) = dims("query")


def mix_backward(shape: EncoderShape, d_mixed: Operation) -> list[Operation | Part]:
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
    seen, scale = seen_by(shape, pos), real(width**-0.5)
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
        seeing = where(less(pos, seen_by(shape, query)), value, real(0.0)) if shape.causal else value
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


def scheduled_mix_backward(given: Program, shape: EncoderShape, *, queries: int) -> Program:
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
