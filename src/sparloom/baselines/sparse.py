"""Bind SpMM, SDDMM, attention and pairs of products to arrays, as users call them in torch, MKL, Numba and SciPy.

Calls return their results. Those that can write to an array write to one that was allocated before, starting at a page
as ours does; the others allocate it in every call: `sparloom.report.MAKING` names them, as they are compared with our
call that allocates its own. In pairs, the result of the first product is allocated once where the library takes an
output array: torch and MKL do, SciPy's sparse product does not.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from sparloom.baselines.dgl_process import dgl_sddmm, dgl_spmm
from sparloom.baselines.mkl import mkl_gemm, mkl_spmm
from sparloom.baselines.sparse_libraries import aocl_spmm, graphblas_sddmm, graphblas_spmm, mkl_dot
from sparloom.fusion import Pair
from sparloom.jit import aligned
from sparloom.ops import Operands
from sparloom.resources import package_versions
from sparloom.sparse import SparseMatrix

Run = Callable[[], None]
MAX_INT32 = 2**31 - 1
PACKAGES = ("torch", "mkl", "numba", "scipy", "numpy", "suitesparse-graphblas", "sparse-dot-mkl", "aoclda")
AttentionCall = Callable[[], torch.Tensor]
Call = Callable[[], Any]
Bind = Callable[[Operands, int], Call]
GATHERING = ("gather_dot", "gathered")
"""Baselines that need `gathered_bytes`."""

PairCall = Callable[[], None]


def library_versions() -> dict[str, str]:
    """Return the versions of installed packages."""
    return package_versions(PACKAGES)


def torch_csr(matrix: SparseMatrix) -> torch.Tensor:
    """View a matrix as a CSR tensor, which shares the values."""
    pattern = matrix.pattern
    return csr_tensor(*map(torch.from_numpy, (pattern.indptr, pattern.indices, matrix.values)), pattern.shape)


def csr_tensor(crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Build a CSR tensor, which shares the values; its indices are int32 where the number of nonzeros allows.

    torch's kernels are faster with int32 indices.
    """
    integer = torch.int32 if values.numel() <= MAX_INT32 else torch.int64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR format a beta
        return torch.sparse_csr_tensor(crow.to(integer), col.to(integer), values, size=shape)


def torch_spmm(matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int) -> Run:
    """Multiply by torch.mm with a CSR tensor."""
    torch.set_num_threads(threads)
    left, right, out = torch_csr(matrix), torch.from_numpy(dense), torch.from_numpy(result)
    return lambda: torch.mm(left, right, out=out)


def numba_spmm(matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int) -> Run:
    """Multiply by plain Numba loops: rows in parallel, additions in any order."""
    import numba

    multiply, indptr = _numba_spmm_loops(), matrix.pattern.indptr.astype(np.int32)

    def run() -> None:
        numba.set_num_threads(threads)
        multiply(indptr, matrix.pattern.indices, matrix.values, dense, result)

    return run


def scipy_spmm(matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int) -> Run:
    """Multiply by SciPy, on one thread and into a new array; the copy into `result` is timed too."""
    csr = matrix.to_scipy()
    return lambda: np.copyto(result, csr @ dense)


SPMM_BASELINES: Mapping[str, Callable[..., Run]] = MappingProxyType(
    {"torch": torch_spmm, "mkl": mkl_spmm, "numba": numba_spmm, "scipy": scipy_spmm})
"""Libraries that compute SpMM on the CPU, by name."""


@cache
def _numba_spmm_loops() -> Callable[..., None]:
    import numba

    def multiply(
        indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, dense: np.ndarray, result: np.ndarray,
    ) -> None:
        for row in numba.prange(indptr.size - 1):
            result[row, :] = 0
            for n in range(indptr[row], indptr[row + 1]):
                value, column = values[n], indices[n]
                for k in range(result.shape[1]):
                    result[row, k] += value * dense[column, k]

    return numba.njit(parallel=True, fastmath=True)(multiply)


def sampled_attention(matrix: torch.Tensor, rows: torch.Tensor, dense: Mapping[str, torch.Tensor]) -> AttentionCall:
    """Bind attention head by head: sampled_addmm, a softmax over the rows, torch.mm with a CSR tensor.

    The call returns (rows, heads, columns of a head of V) for Q (rows, heads, d), K (cols, heads, d) and V in `dense`.

    Args:
        matrix: CSR tensor (rows, cols); its values are not read.
        rows: (nnz,) int64, row of every nonzero.
    """
    queries, keys, values = (dense[name].unbind(1) for name in ("Q", "K", "V"))
    pattern, scale = (matrix.crow_indices(), matrix.col_indices()), queries[0].shape[1] ** -0.5

    def head(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = torch.sparse.sampled_addmm(matrix, query, key.T, beta=0, alpha=scale).values()
        weights = _row_softmax(scores, rows, matrix.shape[0])
        return torch.sparse_csr_tensor(*pattern, weights, size=matrix.shape) @ value

    return lambda: torch.stack([head(*each) for each in zip(queries, keys, values, strict=True)], 1)


def gathered_attention(rows: torch.Tensor, columns: torch.Tensor, dense: Mapping[str, torch.Tensor]) -> AttentionCall:
    """Bind attention of all heads at once: gathered rows, a softmax over the rows, additions by index.

    Operands and results are those of `sampled_attention`.

    Args:
        rows, columns: (nnz,) int64, indices of every nonzero.
    """
    queries, keys, values = (dense[name] for name in ("Q", "K", "V"))
    count = queries.shape[0]

    def call() -> torch.Tensor:
        scores = (queries.index_select(0, rows) * keys.index_select(0, columns)).sum(2) * queries.shape[2] ** -0.5
        weights = _row_softmax(scores, rows, count)
        sent = weights[:, :, None] * values.index_select(0, columns)
        return values.new_zeros(count, *values.shape[1:]).index_add_(0, rows, sent)

    return call


def _row_softmax(scores: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """Compute the softmax of the scores of each row, as PyTorch Geometric does."""
    index = rows if scores.dim() == 1 else rows[:, None].expand_as(scores)
    peaks = scores.new_full((count, *scores.shape[1:]), -torch.inf).scatter_reduce_(0, index, scores, "amax")
    weights = (scores - peaks.index_select(0, rows)).exp_()
    totals = scores.new_zeros((count, *scores.shape[1:])).index_add_(0, rows, weights)
    return weights / totals.index_select(0, rows)


def gathered_bytes(operands: Operands) -> int:
    """Return the bytes of two gathered arrays (nnz, width) and their product, which gathering baselines allocate."""
    return 3 * operands.value_bytes * operands.matrix.pattern.nnz * operands.width


def _into_array(bind: Callable[..., Callable[[], None]], operands: Operands, threads: int) -> Call:
    """Bind a baseline that writes to an array."""
    dense = operands.dense["B"]
    result = aligned((operands.matrix.pattern.rows, dense.shape[1]), dense.dtype)
    run = bind(operands.matrix, dense, result, threads=threads)

    def call() -> np.ndarray:
        run()
        return result

    return call


def _scipy(operands: Operands, threads: int) -> Call:
    """Bind SciPy's product, on one thread."""
    csr, dense = operands.matrix.to_scipy(), operands.dense["B"]
    return lambda: csr @ dense


def _torch_reduce(operands: Operands, threads: int) -> Call:
    """Bind torch.sparse.mm with a reduction, which does not call MKL."""
    torch.set_num_threads(threads)
    matrix, dense = torch_csr(operands.matrix), torch.from_numpy(operands.dense["B"])
    return lambda: torch.sparse.mm(matrix, dense, "sum")


def _sampled_addmm(operands: Operands, threads: int) -> Call:
    """Bind torch.sparse.sampled_addmm into a tensor; the values of A must be 1."""
    torch.set_num_threads(threads)
    matrix, (left, right) = torch_csr(operands.matrix), (torch.from_numpy(operands.dense[name]) for name in ("B", "C"))
    result = aligned((operands.matrix.pattern.nnz,), operands.matrix.dtype)
    turned, out = right.T, torch_csr(operands.matrix.with_values(result))
    return lambda: torch.sparse.sampled_addmm(matrix, left, turned, beta=0, out=out).values()


def _gather_dot(operands: Operands, threads: int) -> Call:
    """Bind AutoSAGE's baseline: both rows of every nonzero, gathered and multiplied."""
    torch.set_num_threads(threads)
    pattern, (left, right) = operands.matrix.pattern, (torch.from_numpy(operands.dense[name]) for name in ("B", "C"))
    rows, columns = torch.from_numpy(pattern.row_ids()), torch.from_numpy(pattern.indices)
    return lambda: (left.index_select(0, rows) * right.index_select(0, columns)).sum(1)


def _numba_sddmm(operands: Operands, threads: int) -> Call:
    """Bind plain Numba loops: rows in parallel, additions in any order."""
    import numba

    multiply, pattern = _numba_sddmm_loops(), operands.matrix.pattern
    left, right = operands.dense["B"], operands.dense["C"]
    indptr, result = pattern.indptr.astype(np.int32), aligned((pattern.nnz,), left.dtype)

    def call() -> np.ndarray:
        numba.set_num_threads(threads)
        multiply(indptr, pattern.indices, left, right, result)
        return result

    return call


@cache
def _numba_sddmm_loops() -> Callable[..., None]:
    import numba

    def multiply(
        indptr: np.ndarray, indices: np.ndarray, left: np.ndarray, right: np.ndarray, result: np.ndarray,
    ) -> None:
        for row in numba.prange(indptr.size - 1):
            for n in range(indptr[row], indptr[row + 1]):
                column, total = indices[n], left.dtype.type(0)
                for k in range(left.shape[1]):
                    total += left[row, k] * right[column, k]
                result[n] = total

    return numba.njit(parallel=True, fastmath=True)(multiply)


def _composed_sampled(operands: Operands, threads: int) -> Call:
    """Bind attention, one head after the other."""
    torch.set_num_threads(threads)
    rows = torch.from_numpy(operands.matrix.pattern.row_ids()).long()
    return sampled_attention(torch_csr(operands.matrix), rows, _tensors(operands))


def _composed_gathered(operands: Operands, threads: int) -> Call:
    """Bind attention of all heads at once."""
    torch.set_num_threads(threads)
    pattern = operands.matrix.pattern
    rows, columns = (torch.from_numpy(array).long() for array in (pattern.row_ids(), pattern.indices))
    return gathered_attention(rows, columns, _tensors(operands))


def _tensors(operands: Operands) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in operands.dense.items()}


SPARSE_BASELINES: Mapping[str, Mapping[str, Bind]] = MappingProxyType({
    "spmm": {**{name: partial(_into_array, bind) for name, bind in SPMM_BASELINES.items()},
             "aocl": partial(_into_array, aocl_spmm), "torch_reduce": _torch_reduce, "scipy": _scipy,
             "graphblas": graphblas_spmm, "mkl_dot": mkl_dot, "dgl": dgl_spmm},
    "sddmm": {"sampled_addmm": _sampled_addmm, "numba": _numba_sddmm, "gather_dot": _gather_dot,
              "graphblas": graphblas_sddmm, "dgl": dgl_sddmm},
    "attention": {"composed": _composed_sampled, "gathered": _composed_gathered},
})
"""Operation -> name -> function that binds it to operands and a number of threads."""


def torch_pair(op: Pair, operands: Operands, result: np.ndarray, *, threads: int) -> PairCall:
    """Multiply by torch.mm, with sparse operands as CSR tensors."""
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


def mkl_pair(op: Pair, operands: Operands, result: np.ndarray, *, threads: int) -> PairCall:
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


def scipy_pair(op: Pair, operands: Operands, result: np.ndarray) -> PairCall:
    """Multiply by SciPy's CSR and NumPy's BLAS on one thread; the copy into `result` is timed too."""
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
    """Allocate the result of the first product and touch its pages."""
    pattern = operands.matrix.pattern
    shape = ((pattern.rows, operands.dense["B"].shape[1]) if op.name == "spmm_gemm"
             else (pattern.cols, op.width(operands)))
    array = aligned(shape, operands.matrix.dtype.type)
    array.fill(0)
    return array


def _both(one: PairCall, two: PairCall) -> PairCall:
    def run() -> None:
        one()
        two()

    return run
