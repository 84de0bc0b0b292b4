"""Sparse operations as operators torch.ops.sparloom, visible to autograd and torch.compile.

    spmm                A X, its mean or maximum         from values (nnz,), X (cols, width)
    spmm_transposed     AT Y                             from values (nnz,), Y (rows, width)
    sddmm               values * (Q KT) on A's pattern   from Q (rows, width), K (cols, width)
    csr_attention       softmax(Q KT / sqrt(d)) V        from Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e)
    spmm_max            max over n in row i of values(n) X(col(n), f), and the argmax p = argmax(i, f)
    spmm_at             values(p) X(col(p), f)                   (rows, width)
    spmm_transposed_at  sums of values(p) Y(i, f) at col(p)      (cols, width)
    sddmm_at            sums of Y(i, f) X(col(p), f) at p        (nnz,)

A's pattern is passed as crow (rows + 1,) and col (nnz,); argmax is (rows, width) int32. Gradients of the first three
are compositions of these three, those of the maximum of the last three (costs: `sparloom.nn.tensor_backend`), with the
argmax held constant; both have gradients of any order. `spmm` with reduce="max" recomputes the argmax in its backward
pass. Attention has first-order gradients only. Operands are checked by `sparloom.nn.sparse`.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from sparloom.nn import core_calls
from sparloom.nn.custom_ops import Gradients, define_operator, product_rule, refuse_legacy_vmap
from sparloom.nn.pattern_cache import PreparedPattern, pattern_cache
from sparloom.nn.tensor_backend import ArgmaxProducts

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _at_argmax(crow: torch.Tensor, col: torch.Tensor, cols: int) -> ArgmaxProducts:
    return pattern_cache().get(crow, col, cols).argmax_products


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _argmax_gradients(
    crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor | None, dense: torch.Tensor | None,
    argmax: torch.Tensor, grad: torch.Tensor, *, cols: int, needed: Sequence[bool],
) -> Gradients:
    """Compute the needed gradients of values(p) X(col(p), f), one for each of crow, col, values and X.

    Args:
        values, dense: None if the gradient of the other one is not needed.
    """
    return (None, None, sddmm_at(crow, col, grad, dense, argmax) if needed[2] else None,
            spmm_transposed_at(crow, col, values, grad, argmax, cols) if needed[3] else None)


def _save_factors(ctx: Any, inputs: tuple[Any, ...], *others: torch.Tensor, both: bool = False) -> None:
    """Save the pattern, each factor if the gradient of the other one is needed, and other tensors.

    Args:
        inputs: crow, col, values, dense, and more.
        both: save both factors.
    """
    crow, col, values, dense = inputs[:4]
    ctx.cols = dense.shape[0]
    ctx.save_for_backward(crow, col, values if both or ctx.needs_input_grad[3] else None,
                          dense if both or ctx.needs_input_grad[2] else None, *others)


def _product_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    return _argmax_gradients(*ctx.saved_tensors, grad, cols=ctx.cols, needed=ctx.needs_input_grad)


def _spmm_max_jvp(inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, None]:
    """Differentiate the largest products of (crow, col, values, X) in forward mode, at their argmax."""
    crow, col, values, dense = inputs
    _, argmax = spmm_max(crow, col, values, dense)
    return product_rule(lambda *factors: spmm_at(crow, col, *factors, argmax), (values, dense), tangents[2:]), None


spmm_max = define_operator(
    "spmm_max", "(Tensor crow, Tensor col, Tensor values, Tensor dense) -> (Tensor, Tensor)",
    run=lambda crow, col, values, dense: core_calls.spmm_max(crow, col, values, dense) or pattern_cache().get(
        crow, col, dense.shape[0]).spmm_max(values, dense),
    fake=lambda crow, col, values, dense: (
        dense.new_empty(crow.shape[0] - 1, dense.shape[1]),
        dense.new_empty(crow.shape[0] - 1, dense.shape[1], dtype=torch.int32)),
    setup_context=lambda ctx, inputs, output: _save_factors(ctx, inputs, output[1]),
    backward=lambda ctx, grad, _: _product_backward(ctx, grad), jvp=_spmm_max_jvp)

spmm_at = define_operator(
    "spmm_at", "(Tensor crow, Tensor col, Tensor values, Tensor dense, Tensor argmax) -> Tensor",
    run=lambda crow, col, values, dense, argmax: _at_argmax(crow, col, dense.shape[0]).spmm_at(
        argmax, values, dense),
    fake=lambda crow, col, values, dense, argmax: dense.new_empty(argmax.shape),
    setup_context=lambda ctx, inputs, output: _save_factors(ctx, inputs, inputs[4]),
    backward=lambda ctx, grad: (*_product_backward(ctx, grad), None))


def _spmm_transposed_at_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, dense, argmax = ctx.saved_tensors
    return (None, None, sddmm_at(crow, col, dense, grad, argmax) if ctx.needs_input_grad[2] else None,
            spmm_at(crow, col, values, grad, argmax) if ctx.needs_input_grad[3] else None, None, None)


spmm_transposed_at = define_operator(
    "spmm_transposed_at",
    "(Tensor crow, Tensor col, Tensor values, Tensor dense, Tensor argmax, SymInt cols) -> Tensor",
    run=lambda crow, col, values, dense, argmax, cols: _at_argmax(crow, col, cols).spmm_transposed_at(
        argmax, values, dense),
    fake=lambda crow, col, values, dense, argmax, cols: dense.new_empty(cols, dense.shape[1]),
    setup_context=lambda ctx, inputs, output: _save_factors(ctx, inputs, inputs[4]),
    backward=_spmm_transposed_at_backward)


def _sddmm_at_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, left, right, argmax = ctx.saved_tensors
    return (None, None, spmm_at(crow, col, grad, right, argmax) if ctx.needs_input_grad[2] else None,
            spmm_transposed_at(crow, col, grad, left, argmax, right.shape[0]) if ctx.needs_input_grad[3] else None,
            None)


sddmm_at = define_operator(
    "sddmm_at", "(Tensor crow, Tensor col, Tensor left, Tensor right, Tensor argmax) -> Tensor",
    run=lambda crow, col, left, right, argmax: _at_argmax(crow, col, right.shape[0]).sddmm_at(
        argmax, left, right),
    fake=lambda crow, col, left, right, argmax: left.new_empty(col.shape[0]),
    setup_context=_save_inputs, backward=_sddmm_at_backward)


def _run_spmm(
    crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, dense: torch.Tensor, reduce: str,
) -> torch.Tensor:
    result = core_calls.spmm(crow, col, values, dense, reduce)
    return pattern_cache().get(crow, col, dense.shape[0]).spmm(values, dense, reduce) if result is None else result


def _run_spmm_transposed(
    crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, dense: torch.Tensor, cols: int,
) -> torch.Tensor:
    result = core_calls.spmm_transposed(crow, col, values, dense, cols)
    return pattern_cache().get(crow, col, cols).spmm_transposed(values, dense) if result is None else result


def _run_sddmm(
    crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor,
) -> torch.Tensor:
    result = core_calls.sddmm(crow, col, values, left, right)
    return pattern_cache().get(crow, col, right.shape[0]).sddmm(values, left, right) if result is None else result


def _run_attention(
    crow: torch.Tensor, col: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
) -> torch.Tensor:
    result = core_calls.attention(crow, col, queries, keys, values)
    return pattern_cache().get(crow, col, keys.shape[0]).attention(queries, keys, values) if result is None else result


def _save_spmm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.reduce = inputs[4]
    _save_factors(ctx, inputs, both=ctx.reduce == "max")


def _spmm_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    return _spmm_gradients(ctx, grad, ctx.needs_input_grad)


def _spmm_gradients(ctx: Any, grad: torch.Tensor, needed: Sequence[bool]) -> Gradients:
    """Compute the needed gradients of crow, col, values and X, and None for the reduction."""
    crow, col, values, dense = ctx.saved_tensors
    if ctx.reduce == "max":
        _, argmax = spmm_max(crow, col, values, dense)
        gradients = _argmax_gradients(
            crow, col, values, dense, argmax, grad, cols=ctx.cols, needed=needed)
        return *gradients, None
    if ctx.reduce == "mean":
        grad = grad / crow.diff().clamp(min=1).unsqueeze(1)
    return (None, None, sddmm(crow, col, None, grad, dense) if needed[2] else None,
            spmm_transposed(crow, col, values, grad, ctx.cols) if needed[3] else None, None)


def _spmm_jvp(inputs: tuple[Any, ...], tangents: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
    """Differentiate the product in forward mode: linear in both factors, except that the argmax is held constant."""
    crow, col, values, dense, reduce = inputs
    if reduce == "max":
        return _spmm_max_jvp(inputs[:4], tangents[:4])[0]
    return product_rule(lambda *factors: spmm(crow, col, *factors, reduce), (values, dense), tangents[2:4])


spmm = define_operator(
    "spmm", "(Tensor crow, Tensor col, Tensor values, Tensor dense, str reduce) -> Tensor",
    run=_run_spmm,
    fake=lambda crow, col, values, dense, reduce: dense.new_empty(crow.shape[0] - 1, dense.shape[1]),
    setup_context=_save_spmm, backward=_spmm_backward, jvp=_spmm_jvp)


class _RecordedSpmm(torch.autograd.Function):
    """Records a product that is computed already."""

    @staticmethod
    def forward(ctx: Any, result: list[torch.Tensor], *inputs: Any) -> torch.Tensor:
        crow, col, values, dense, ctx.reduce = inputs
        both, (needs_values, needs_dense) = ctx.reduce == "max", ctx.needs_input_grad[3:5]
        ctx.cols = dense.shape[0]
        ctx.save_for_backward(crow, col, values if both or needs_dense else None,
                              dense if both or needs_values else None)
        return result[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Gradients:
        refuse_legacy_vmap(grad, "spmm")
        needed = ctx.needs_input_grad[1:]
        if ctx.reduce == "sum" and not needed[2] and not torch.is_grad_enabled():  # the usual case, in half the time
            crow, col, values, _ = ctx.saved_tensors
            result = core_calls.spmm_transposed(crow, col, values, grad, ctx.cols)
            if result is not None:
                return None, None, None, None, result, None
        return None, *_spmm_gradients(ctx, grad, needed)


def recorded_spmm(result: torch.Tensor, matrix: Any, dense: torch.Tensor, reduce: str) -> torch.Tensor:
    """Record a product for autograd if a gradient is wanted.

    Args:
        matrix: CSR tensor or tuple of its parts, of which the native core has just computed `result`.
    """
    values = matrix[2] if isinstance(matrix, tuple) else matrix
    if not (torch.is_grad_enabled() and (values.requires_grad or dense.requires_grad)):
        return result
    parts = matrix[:3] if isinstance(matrix, tuple) else (matrix.crow_indices(), matrix.col_indices(), matrix.values())
    return _RecordedSpmm.apply([result], *parts, dense, reduce)


def _spmm_transposed_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, dense = ctx.saved_tensors
    return (None, None, sddmm(crow, col, None, dense, grad) if ctx.needs_input_grad[2] else None,
            spmm(crow, col, values, grad, "sum") if ctx.needs_input_grad[3] else None, None)


spmm_transposed = define_operator(
    "spmm_transposed", "(Tensor crow, Tensor col, Tensor values, Tensor dense, SymInt cols) -> Tensor",
    run=_run_spmm_transposed,
    fake=lambda crow, col, values, dense, cols: dense.new_empty(cols, dense.shape[1]),
    setup_context=lambda ctx, inputs, output: _save_factors(ctx, inputs),
    backward=_spmm_transposed_backward)


def _sddmm_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    crow, col, values, left, right = ctx.saved_tensors
    _, _, needs_values, needs_left, needs_right = ctx.needs_input_grad
    weights = grad if values is None else grad * values
    return (None, None, grad * sddmm(crow, col, None, left, right) if needs_values else None,
            spmm(crow, col, weights, right, "sum") if needs_left else None,
            spmm_transposed(crow, col, weights, left, right.shape[0]) if needs_right else None)


sddmm = define_operator(
    "sddmm", "(Tensor crow, Tensor col, Tensor? values, Tensor left, Tensor right) -> Tensor",
    run=_run_sddmm,
    fake=lambda crow, col, values, left, right: left.new_empty(col.shape[0]),
    setup_context=_save_inputs, backward=_sddmm_backward)


def _attention_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    return None, None, *csr_attention_backward(*ctx.saved_tensors, grad)


csr_attention = define_operator(
    "csr_attention", "(Tensor crow, Tensor col, Tensor queries, Tensor keys, Tensor values) -> Tensor",
    run=_run_attention,
    fake=lambda crow, col, queries, keys, values: queries.new_empty(crow.shape[0] - 1, *values.shape[1:]),
    setup_context=_save_inputs, backward=_attention_backward,
    jvp=lambda inputs, tangents: _refuse_second_derivative())


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _refuse_second_derivative(*_: Any) -> NoReturn:
    raise RuntimeError("csr_attention has no second derivatives and no forward mode: use backward without "
                       "create_graph=True, or compose attention from sddmm, a softmax over the rows, and spmm, which "
                       "support both")


csr_attention_backward = define_operator(
    "csr_attention_backward",
    "(Tensor crow, Tensor col, Tensor queries, Tensor keys, Tensor values, Tensor grad)"
    " -> (Tensor, Tensor, Tensor)",
    run=lambda crow, col, queries, keys, values, grad: _attention_gradients(
        pattern_cache().get(crow, col, keys.shape[0]), queries, keys, values, grad),
    fake=lambda crow, col, *tensors: tuple(tensor.new_empty(tensor.shape) for tensor in tensors[:3]),
    setup_context=_save_nothing, backward=_refuse_second_derivative,
    jvp=lambda inputs, tangents: _refuse_second_derivative())


def _attention_gradients(
    pattern: PreparedPattern, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, grad: torch.Tensor,
) -> Three:
    """Compute the gradients of Q (rows, heads, d), K (cols, heads, d) and V (cols, heads, e).

    Those of 16-bit numbers are computed in float32. Heads are processed one by one, so that the scores in memory are
    one value per nonzero.
    """
    inputs = (queries, keys, values)
    gradients = tuple(tensor.new_zeros(tensor.shape) for tensor in inputs)
    dtype = torch.promote_types(queries.dtype, torch.float32)
    for head in range(queries.shape[1] if pattern.pattern.nnz else 0):
        parts = _head_gradients(pattern, *(tensor[:, head].to(dtype) for tensor in (*inputs, grad)))
        for gradient, part in zip(gradients, parts, strict=True):
            gradient[:, head] = part
    return gradients


def _head_gradients(
    pattern: PreparedPattern, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor,
) -> Three:
    """Compute dQ, dK, dV of one head, without the result O, which the caller may have changed in place.

        P = softmax(Q KT / sqrt(d));  dV = PT dO;  dP = dO VT;  dS = P * (dP - rowsum(P * dP)) / sqrt(d)
        dQ = dS K;  dK = dST Q
    """
    scale = q.shape[1] ** -0.5
    weights = _row_softmax_(pattern, pattern.sddmm(None, q, k).mul_(scale))
    slopes = pattern.sddmm(None, do, v)
    sums = torch.segment_reduce(weights * slopes, "sum", offsets=pattern.offsets)
    slopes = slopes.sub_(_per_nonzero(pattern, sums)).mul_(weights).mul_(scale)
    return pattern.spmm(slopes, k), pattern.spmm_transposed(slopes, q), pattern.spmm_transposed(weights, do)


def _row_softmax_(pattern: PreparedPattern, scores: torch.Tensor) -> torch.Tensor:
    """Apply softmax to the scores (nnz,) of every row, in place."""
    scores.sub_(_per_nonzero(pattern, torch.segment_reduce(scores, "max", offsets=pattern.offsets))).exp_()
    return scores.div_(_per_nonzero(pattern, torch.segment_reduce(scores, "sum", offsets=pattern.offsets)))


def _per_nonzero(pattern: PreparedPattern, row_values: torch.Tensor) -> torch.Tensor:
    """Repeat a value of each row for its nonzeros, (nnz,)."""
    return row_values.index_select(0, pattern.rows)
