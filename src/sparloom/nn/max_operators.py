"""The maximum of products as operators of torch: torch.ops.sparloom, seen by autograd and torch.compile.

    spmm_max            max over n in row i of values(n) X(col(n), f), and which nonzero p each element comes from
    spmm_at             values(p) X(col(p), f)                for p = places(i, f): (rows, width)
    spmm_transposed_at  sums of values(p) Y(i, f) at col(p)   from Y (rows, width): (cols, width)
    sddmm_at            sums of Y(i, f) X(col(p), f) at p     from Y (rows, width), X (cols, width): (nnz,)

A's pattern is given as crow (rows + 1,) and col (nnz,), places are (rows, width) int32, values (nnz,) and X
(cols, width). The gradients of all four are made of the last three, whose costs stand in `sparloom.nn.at_places`: there
are gradients of any order, with the places as they are. Operands are checked by `sparloom.nn.sparse`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from sparloom.nn.known_patterns import known_patterns
from sparloom.nn.registration import Gradients, define

__all__ = ["gradients_at", "largest_slope", "spmm_max"]


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
