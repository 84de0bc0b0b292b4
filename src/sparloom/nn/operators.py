"""Gradients of attention on a sparse pattern, head by head: of the scores, one value per edge is in memory at once.

All of it is float32, whatever the type of operands and gradients.

The maximum of products as operators of torch: torch.ops.sparloom, seen by autograd and torch.compile.

    spmm_max            max over n in row i of values(n) X(col(n), f), and which nonzero p each element comes from
    spmm_at             values(p) X(col(p), f)                for p = places(i, f): (rows, width)
    spmm_transposed_at  sums of values(p) Y(i, f) at col(p)   from Y (rows, width): (cols, width)
    sddmm_at            sums of Y(i, f) X(col(p), f) at p     from Y (rows, width), X (cols, width): (nnz,)

A's pattern is given as crow (rows + 1,) and col (nnz,), places are (rows, width) int32, values (nnz,) and X
(cols, width). The gradients of all four are made of the last three (costs: `sparloom.nn.tensor_backend`), so there
are gradients of any order, with the places as they are. Operands are checked by `sparloom.nn.sparse`.

Sparse operations as operators of torch: torch.ops.sparloom, seen by autograd and torch.compile.

    spmm             A X, its mean or maximum       from values (nnz,), X (cols, width)
    spmm_transposed  AT Y                           from values (nnz,), Y (rows, width)
    sddmm            values * (Q KT) on A's pattern from Q (rows, width), K (cols, width)
    csr_attention    softmax(Q KT / sqrt(d)) V      from Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e)

A's pattern is given as crow (rows + 1,) and col (nnz,). The gradients of the first three are made of these three, so
they have gradients of any order; attention has first ones. Those of the maximum are in `sparloom.nn.operators`;
here they look for the places of the maxima first, which is the product once more. Operands are checked by
`sparloom.nn.sparse`.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from sparloom.nn.custom_ops import Gradients, define
from sparloom.nn.pattern_cache import Directions, known_patterns

__all__ = ["attention_gradients", "csr_attention", "gradients_at", "largest_slope", "sddmm", "spmm", "spmm_max"]

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attention_gradients(
    edges: Directions, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, result: torch.Tensor,
    grad: torch.Tensor,
) -> Three:
    """Compute the gradients of Q (rows, heads, d), K (cols, heads, d) and V (cols, heads, e).

    Args:
        result: O (rows, heads, e), what attention gave.
        grad: dO, likewise.
    """
    given = (queries, keys, values)
    gradients = tuple(tensor.new_zeros(tensor.shape) for tensor in given)
    for head in range(queries.shape[1] if edges.pattern.nnz else 0):
        parts = _head(edges, *(tensor[:, head].float() for tensor in (*given, result, grad)))
        for gradient, part in zip(gradients, parts, strict=True):
            gradient[:, head] = part
    return gradients


def _head(edges: Directions, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor
          ) -> Three:
    """Compute dQ, dK, dV of one head.

        P = softmax(Q KT / sqrt(d));  dV = PT dO;  dP = dO VT;  dS = P * (dP - rowsum(dO * O)) / sqrt(d)
        dQ = dS K;  dK = dST Q
    """
    scale = q.shape[1] ** -0.5
    weights = _softmax(edges, edges.sddmm(None, q, k).mul_(scale))
    slopes = edges.sddmm(None, do, v).sub_(_spread(edges, (do * o).sum(1))).mul_(weights).mul_(scale)
    return edges.spmm(slopes, k), edges.spmm_transposed(slopes, q), edges.spmm_transposed(weights, do)


def _softmax(edges: Directions, scores: torch.Tensor) -> torch.Tensor:
    """Make scores (nnz,) weights that add up to 1 in every row, in place."""
    scores.sub_(_spread(edges, torch.segment_reduce(scores, "max", offsets=edges.offsets))).exp_()
    return scores.div_(_spread(edges, torch.segment_reduce(scores, "sum", offsets=edges.offsets)))


def _spread(edges: Directions, of_rows: torch.Tensor) -> torch.Tensor:
    """Give every nonzero what its row has, (nnz,)."""
    return of_rows.index_select(0, edges.rows)


def gradients_at(
    crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor | None, dense: torch.Tensor | None,
    places: torch.Tensor, grad: torch.Tensor, *, cols: int, wanted: Sequence[bool],
) -> Gradients:
    """Compute the gradients of values(p) X(col(p), f).

    Args:
        values, dense: None where the other's gradient is not wanted.
        grad: (rows, width).
        wanted: for each of crow, col, values, X.

    Returns:
        One for each of these.
    """
    return (None, None, sddmm_at(crow, col, grad, dense, places) if wanted[2] else None,
            spmm_transposed_at(crow, col, values, grad, places, cols) if wanted[3] else None)


def _keep_product(ctx: Any, inputs: tuple[Any, ...], places: torch.Tensor) -> None:
    """Keep what the gradients of values(p) X(col(p), f) read: the places, and each factor for the other's sake."""
    crow, col, values, dense = inputs[:4]
    ctx.cols = dense.shape[0]
    ctx.save_for_backward(crow, col, values if ctx.needs_input_grad[3] else None,
                          dense if ctx.needs_input_grad[2] else None, places)


def _product_gradients(ctx: Any, grad: torch.Tensor) -> Gradients:
    return gradients_at(*ctx.saved_tensors, grad, cols=ctx.cols, wanted=ctx.needs_input_grad)


def largest_slope(given: Sequence[torch.Tensor], slopes: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, None]:
    """Derive the largest products in forward mode, of (crow, col, values, X): those at their places."""
    crow, col, values, dense = given
    _, places = spmm_max(crow, col, values, dense)
    parts = [spmm_at(crow, col, *pair, places) for pair in ((slopes[2], dense), (values, slopes[3]))
             if pair[0] is not None and pair[1] is not None]
    return sum(parts[1:], parts[0]), None


spmm_max = define(
    "spmm_max", "(Tensor crow, Tensor col, Tensor values, Tensor dense) -> (Tensor, Tensor)",
    run=lambda crow, col, values, dense: known_patterns().find(crow, col, dense.shape[0]).spmm_max(values, dense),
    fake=lambda crow, col, values, dense: (
        dense.new_empty(crow.shape[0] - 1, dense.shape[1]),
        dense.new_empty(crow.shape[0] - 1, dense.shape[1], dtype=torch.int32)),
    keep=lambda ctx, inputs, output: _keep_product(ctx, inputs, output[1]),
    backward=lambda ctx, grad, _: _product_gradients(ctx, grad), tangent=largest_slope)

spmm_at = define(
    "spmm_at", "(Tensor crow, Tensor col, Tensor values, Tensor dense, Tensor places) -> Tensor",
    run=lambda crow, col, values, dense, places: known_patterns().find(crow, col, dense.shape[0]).spmm_at(
        places, values, dense),
    fake=lambda crow, col, values, dense, places: dense.new_empty(places.shape),
    keep=lambda ctx, inputs, output: _keep_product(ctx, inputs, inputs[4]),
    backward=lambda ctx, grad: (*_product_gradients(ctx, grad), None))


def _keep_transposed(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    crow, col, values, dense, places, _ = inputs
    ctx.save_for_backward(crow, col, values if ctx.needs_input_grad[3] else None,
                          dense if ctx.needs_input_grad[2] else None, places)


def _transposed_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, dense, places = ctx.saved_tensors
    return (None, None, sddmm_at(crow, col, dense, grad, places) if ctx.needs_input_grad[2] else None,
            spmm_at(crow, col, values, grad, places) if ctx.needs_input_grad[3] else None, None, None)


spmm_transposed_at = define(
    "spmm_transposed_at",
    "(Tensor crow, Tensor col, Tensor values, Tensor dense, Tensor places, SymInt cols) -> Tensor",
    run=lambda crow, col, values, dense, places, cols: known_patterns().find(crow, col, cols).spmm_transposed_at(
        places, values, dense),
    fake=lambda crow, col, values, dense, places, cols: dense.new_empty(cols, dense.shape[1]),
    keep=_keep_transposed, backward=_transposed_backward)


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sddmm_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, left, right, places = ctx.saved_tensors
    return (None, None, spmm_at(crow, col, grad, right, places) if ctx.needs_input_grad[2] else None,
            spmm_transposed_at(crow, col, grad, left, places, right.shape[0]) if ctx.needs_input_grad[3] else None,
            None)


sddmm_at = define(
    "sddmm_at", "(Tensor crow, Tensor col, Tensor left, Tensor right, Tensor places) -> Tensor",
    run=lambda crow, col, left, right, places: known_patterns().find(crow, col, right.shape[0]).sddmm_at(
        places, left, right),
    fake=lambda crow, col, left, right, places: left.new_empty(col.shape[0]),
    keep=_keep_all, backward=_sddmm_backward)


def _keep_spmm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    crow, col, values, dense, ctx.reduce = inputs
    ctx.cols, largest = dense.shape[0], ctx.reduce == "max"
    ctx.save_for_backward(crow, col, values if largest or ctx.needs_input_grad[3] else None,
                          dense if largest or ctx.needs_input_grad[2] else None)


def _spmm_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, dense = ctx.saved_tensors
    if ctx.reduce == "max":
        _, places = spmm_max(crow, col, values, dense)
        return *gradients_at(crow, col, values, dense, places, grad, cols=ctx.cols, wanted=ctx.needs_input_grad), None
    if ctx.reduce == "mean":
        grad = grad / crow.diff().clamp(min=1).unsqueeze(1)
    return (None, None, sddmm(crow, col, None, grad, dense) if ctx.needs_input_grad[2] else None,
            spmm_transposed(crow, col, values, grad, ctx.cols) if ctx.needs_input_grad[3] else None, None)


def _spmm_slope(given: tuple[Any, ...], slopes: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
    """Derive the product in forward mode: linear in both factors, but that the places of maxima stay."""
    crow, col, values, dense, reduce = given
    if reduce == "max":
        return largest_slope(given[:4], slopes[:4])[0]
    parts = [spmm(crow, col, *pair, reduce) for pair in ((slopes[2], dense), (values, slopes[3])) if pair[0] is not None
             and pair[1] is not None]
    return sum(parts[1:], parts[0])


spmm = define(
    "spmm", "(Tensor crow, Tensor col, Tensor values, Tensor dense, str reduce) -> Tensor",
    run=lambda crow, col, values, dense, reduce: known_patterns().find(crow, col, dense.shape[0]).spmm(
        values, dense, reduce),
    fake=lambda crow, col, values, dense, reduce: dense.new_empty(crow.shape[0] - 1, dense.shape[1]),
    keep=_keep_spmm, backward=_spmm_backward, tangent=_spmm_slope)


def _csr_operators_keep_transposed(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    crow, col, values, dense, _ = inputs
    ctx.save_for_backward(crow, col, values if ctx.needs_input_grad[3] else None,
                          dense if ctx.needs_input_grad[2] else None)


def _csr_operators_transposed_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, dense = ctx.saved_tensors
    return (None, None, sddmm(crow, col, None, dense, grad) if ctx.needs_input_grad[2] else None,
            spmm(crow, col, values, grad, "sum") if ctx.needs_input_grad[3] else None, None)


spmm_transposed = define(
    "spmm_transposed", "(Tensor crow, Tensor col, Tensor values, Tensor dense, SymInt cols) -> Tensor",
    run=lambda crow, col, values, dense, cols: known_patterns().find(crow, col, cols).spmm_transposed(values, dense),
    fake=lambda crow, col, values, dense, cols: dense.new_empty(cols, dense.shape[1]),
    keep=_csr_operators_keep_transposed, backward=_csr_operators_transposed_backward)


def _keep_sddmm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _csr_operators_sddmm_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, left, right = ctx.saved_tensors
    _, _, wants_values, wants_left, wants_right = ctx.needs_input_grad
    weights = grad if values is None else grad * values
    return (None, None, grad * sddmm(crow, col, None, left, right) if wants_values else None,
            spmm(crow, col, weights, right, "sum") if wants_left else None,
            spmm_transposed(crow, col, weights, left, right.shape[0]) if wants_right else None)


sddmm = define(
    "sddmm", "(Tensor crow, Tensor col, Tensor? values, Tensor left, Tensor right) -> Tensor",
    run=lambda crow, col, values, left, right: known_patterns().find(crow, col, right.shape[0]).sddmm(
        values, left, right),
    fake=lambda crow, col, values, left, right: left.new_empty(col.shape[0]),
    keep=_keep_sddmm, backward=_csr_operators_sddmm_backward)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _attention_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    return None, None, *csr_attention_backward(*ctx.saved_tensors, grad)


csr_attention = define(
    "csr_attention", "(Tensor crow, Tensor col, Tensor queries, Tensor keys, Tensor values) -> Tensor",
    run=lambda crow, col, queries, keys, values: known_patterns().find(crow, col, keys.shape[0]).attention(
        queries, keys, values),
    fake=lambda crow, col, queries, keys, values: queries.new_empty(crow.shape[0] - 1, *values.shape[1:]),
    keep=_keep_attention, backward=_attention_backward, tangent=lambda given, slopes: _refuse())


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _refuse(*_: Any) -> NoReturn:
    raise RuntimeError("csr_attention has no second derivatives: take first ones only, without create_graph and not in "
                       "forward mode, or make attention of sddmm, a softmax over the rows, and spmm, which have them")


csr_attention_backward = define(
    "csr_attention_backward",
    "(Tensor crow, Tensor col, Tensor queries, Tensor keys, Tensor values, Tensor result, Tensor grad)"
    " -> (Tensor, Tensor, Tensor)",
    run=lambda crow, col, queries, keys, values, result, grad: attention_gradients(
        known_patterns().find(crow, col, keys.shape[0]), queries, keys, values, result=result, grad=grad),
    fake=lambda crow, col, *given: tuple(tensor.new_empty(tensor.shape) for tensor in given[:3]),
    keep=_keep_nothing, backward=_refuse, tangent=lambda given, slopes: _refuse())
