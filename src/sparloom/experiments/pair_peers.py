"""Products of three matrices as users have them without us: two calls of torch, MKL or SciPy.

What the first call computes is allocated once, and so is the result, where the library takes them: torch and MKL do,
SciPy's sparse product does not.
"""

from collections.abc import Callable

import numpy as np
import torch

from sparloom.experiments.mkl import mkl_gemm, mkl_spmm
from sparloom.fusion import Pair
from sparloom.jit import aligned
from sparloom.nn import torch_csr
from sparloom.ops import Operands

__all__ = ["mkl_pair", "scipy_pair", "torch_pair"]

Call = Callable[[], None]


def torch_pair(op: Pair, operands: Operands, result: np.ndarray, *, threads: int) -> Call:
    """Multiply by torch.mm, sparse operands in its CSR format."""
    torch.set_num_threads(threads)
    first = torch.from_numpy(_between(op, operands))
    dense = {name: torch.from_numpy(array) for name, array in operands.dense.items()}
    if op.name == "gemm_spmm" and op.c_transposed:
        dense["C"] = dense["C"].T
    a, out = torch_csr(operands.matrix), torch.from_numpy(result)
    b = dense["B"] if operands.right is None else torch_csr(operands.right)
    if op.name == "spmm_gemm":
        return _both(lambda: torch.mm(a, b, out=first), lambda: torch.mm(first, dense["C"], out=out))
    return _both(lambda: torch.mm(b, dense["C"], out=first), lambda: torch.mm(a, first, out=out))


def mkl_pair(op: Pair, operands: Operands, result: np.ndarray, *, threads: int) -> Call:
    """Multiply by MKL's GEMM and its sparse inspector-executor, which sparse_dot_mkl calls too.

    Raises:
        Unsupported: MKL is not installed.
    """
    first, c = _between(op, operands), operands.dense["C"]
    if op.name == "gemm_spmm" and op.c_transposed:
        c = c.T
    if op.name == "spmm_gemm":
        return _both(mkl_spmm(operands.matrix, operands.dense["B"], first, threads=threads),
                     mkl_gemm(first, c, result, threads=threads))
    if operands.right is None:
        one = mkl_gemm(operands.dense["B"], c, first, threads=threads)
    else:
        one = mkl_spmm(operands.right, c, first, threads=threads)
    return _both(one, mkl_spmm(operands.matrix, first, result, threads=threads))


def scipy_pair(op: Pair, operands: Operands, result: np.ndarray) -> Call:
    """Multiply by SciPy's CSR and NumPy's BLAS on one thread; the copy into `result` is in the time."""
    first, c = _between(op, operands), operands.dense["C"]
    if op.name == "gemm_spmm" and op.c_transposed:
        c = c.T
    a = operands.matrix.to_scipy()
    if op.name == "spmm_gemm":
        return lambda: np.matmul(a @ operands.dense["B"], c, out=result)
    if operands.right is None:
        return _both(lambda: np.matmul(operands.dense["B"], c, out=first), lambda: np.copyto(result, a @ first))
    b = operands.right.to_scipy()
    return lambda: np.copyto(result, a @ (b @ c))


def _between(op: Pair, operands: Operands) -> np.ndarray:
    """Allocate what the first product gives; its pages are there."""
    pattern = operands.matrix.pattern
    shape = ((pattern.rows, operands.dense["B"].shape[1]) if op.name == "spmm_gemm"
             else (pattern.cols, op.width(operands)))
    array = aligned(shape, operands.matrix.dtype.type)
    array.fill(0)
    return array


def _both(one: Call, two: Call) -> Call:
    def run() -> None:
        one()
        two()

    return run
