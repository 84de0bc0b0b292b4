"""Sparse operations on torch tensors, with gradients: the kernel that is fastest on this machine, found by measurement.

What is measured is kept as by `sparloom.spmm`; torch's own products are among the baselines that a kernel must beat.
"""

from typing import Literal, get_args

import torch

from sparloom.nn import csr_operators, max_operators
from sparloom.nn.autocast import autocast_operands
from sparloom.nn.csr_given import Matrix, check_alike, check_dense, matrix_of
from sparloom.nn.transforms import unscriptable

__all__ = ["csr_attention", "sddmm", "spmm"]

Reduce = Literal["sum", "mean", "max"]

REDUCTIONS = get_args(Reduce)


@unscriptable
def spmm(A: Matrix, X: torch.Tensor, *, reduce: Reduce = "sum") -> torch.Tensor:
    """Multiply a sparse matrix by a dense one: A X, with gradients of A's values and X, of any order.

    The first calls for a pattern and a width, and the first gradients, are computed by one kernel after the other until
    it is known which is the fastest; on a GPU the first one measures a few on some rows. Patterns are found again by
    their index tensors, as long as these live; A's values may change from call to call. Within
    torch.compile(fullgraph=True), which takes no sparse tensors, give A as a tuple. Under torch.autocast operands of
    half precision are read as float32, on a GPU where their types differ.

    Args:
        A: (rows, cols), float32 values with int32 or int64 indices, columns rising in every row, on the CPU or,
            with CuPy and also with float16 or bfloat16 values, on an NVIDIA GPU: a CSR tensor or (crow_indices,
            col_indices, values[, shape]).
        X: (cols, width), of the type of A's values, where A is; of no columns the result has none.
        reduce: "sum"; "mean", divided by the nonzeros of each row; "max", the largest product of each, or NaN if one
            is NaN. All of an element's gradient goes to the nonzero that it comes from, of equal products
            the first one of the row. Which these are is kept, (rows, width) int32, where a gradient is wanted.

    Returns:
        (rows, width) of that type; 0 for rows without nonzeros. Sums are float32.

    Raises:
        TypeError, ValueError: an operand is none that can be multiplied; names it and the remedy.
        Unsupported: operands are on a GPU, and CuPy is missing.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce={reduce!r}: give one of {', '.join(REDUCTIONS)}")
    matrix = matrix_of(A)
    values, X = autocast_operands(matrix.values, X)
    check_dense(X, "X", rows=matrix.cols, axes=2, device=matrix.crow.device, dtype=values.dtype)
    given = matrix.crow, matrix.col, values, X
    if reduce == "max" and torch.is_grad_enabled() and (X.requires_grad or values.requires_grad):
        return max_operators.spmm_max(*given)[0]
    return csr_operators.spmm(*given, reduce)


@unscriptable
def sddmm(A: Matrix, Q: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
    """Multiply dense matrices where a sparse one has nonzeros: A's values * (Q KT), with gradients of all three.

    Args:
        A: as in `spmm`.
        Q, K: (rows, width), (cols, width), of the type of A's values.

    Returns:
        (nnz,) of that type, in the order of A's values.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
    """
    matrix = matrix_of(A)
    values, Q, K = autocast_operands(matrix.values, Q, K)
    check_dense(Q, "Q", rows=matrix.rows, axes=2, device=matrix.crow.device, dtype=values.dtype)
    check_dense(K, "K", rows=matrix.cols, axes=2, device=matrix.crow.device, dtype=values.dtype)
    check_alike(Q, K, "Q", "K")
    return csr_operators.sddmm(matrix.crow, matrix.col, values, Q, K)


@unscriptable
def csr_attention(A: Matrix, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """Let each row attend to the columns where it has nonzeros: softmax(Q KT / sqrt(d)) V, with gradients of Q, K, V.

    Forward, no score is stored; backward, one head's, a value or two per nonzero. There are no second derivatives.

    Args:
        A: as in `spmm`; its values are not read.
        Q, K, V: (rows, heads, d), (cols, heads, d), (cols, heads, e), float32, or on a GPU all of them float16 or
            bfloat16; without heads, one.

    Returns:
        (rows, heads, e) of that type, or (rows, e); 0 for rows without nonzeros.

    Raises:
        TypeError, ValueError, Unsupported: as by `spmm`.
        RuntimeError: a second derivative is asked for.
    """
    if all(isinstance(given, torch.Tensor) and given.dim() == 2 for given in (Q, K, V)):
        return csr_attention(A, Q.unsqueeze(1), K.unsqueeze(1), V.unsqueeze(1)).squeeze(1)
    matrix = matrix_of(A)
    Q, K, V = autocast_operands(Q, K, V)
    check_dense(Q, "Q", rows=matrix.rows, axes=3, device=matrix.crow.device)
    check_dense(K, "K", rows=matrix.cols, axes=3, device=matrix.crow.device, dtype=Q.dtype)
    check_dense(V, "V", rows=K.shape[0], axes=3, device=matrix.crow.device, dtype=Q.dtype)
    check_alike(Q, K, "Q", "K")
    if V.shape[1] != Q.shape[1]:
        raise ValueError(f"V has {V.shape[1]} heads and Q {Q.shape[1]}: give as many")
    if Q.shape[2] == 0:
        raise ValueError(f"Q has shape {tuple(Q.shape)}: attention divides by the width of a head: give at least 1")
    return csr_operators.csr_attention(matrix.crow, matrix.col, Q, K, V)
