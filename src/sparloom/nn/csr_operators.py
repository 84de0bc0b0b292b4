"""Sparse operations as operators of torch: torch.ops.sparloom, seen by autograd and torch.compile.

    spmm             A X, its mean or maximum       from values (nnz,), X (cols, width)
    spmm_transposed  AT Y                           from values (nnz,), Y (rows, width)
    sddmm            values * (Q KT) on A's pattern from Q (rows, width), K (cols, width)
    csr_attention    softmax(Q KT / sqrt(d)) V      from Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e)

A's pattern is given as crow (rows + 1,) and col (nnz,). The gradients of the first three are made of these three, so
they have gradients of any order; attention has first ones. Those of the maximum are in `sparloom.nn.max_operators`;
here they look for the places of the maxima first, which is the product once more. Operands are checked by
`sparloom.nn.sparse`.
"""

from typing import Any, NoReturn

import torch

from sparloom.nn.csr_gradients import attention_gradients
from sparloom.nn.known_patterns import known_patterns
from sparloom.nn.max_operators import gradients_at, largest_slope, spmm_max
from sparloom.nn.registration import Gradients, define

__all__ = ["csr_attention", "sddmm", "spmm"]


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


def _keep_transposed(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    crow, col, values, dense, _ = inputs
    ctx.save_for_backward(crow, col, values if ctx.needs_input_grad[3] else None,
                          dense if ctx.needs_input_grad[2] else None)


def _transposed_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, dense = ctx.saved_tensors
    return (None, None, sddmm(crow, col, None, dense, grad) if ctx.needs_input_grad[2] else None,
            spmm(crow, col, values, grad, "sum") if ctx.needs_input_grad[3] else None, None)


spmm_transposed = define(
    "spmm_transposed", "(Tensor crow, Tensor col, Tensor values, Tensor dense, SymInt cols) -> Tensor",
    run=lambda crow, col, values, dense, cols: known_patterns().find(crow, col, cols).spmm_transposed(values, dense),
    fake=lambda crow, col, values, dense, cols: dense.new_empty(cols, dense.shape[1]),
    keep=_keep_transposed, backward=_transposed_backward)


def _keep_sddmm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sddmm_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
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
    keep=_keep_sddmm, backward=_sddmm_backward)


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
