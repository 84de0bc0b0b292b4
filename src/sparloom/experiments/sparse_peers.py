"""SpMM, SDDMM and attention on a sparse pattern as users have them without us, bound to arrays that are there before.

Calls give their results. Those that can write to an array write to one that was made before and starts at a page, as
ours does; the others make it each time: `sparloom.report.MAKING` names them, as they are compared with our call that
makes its own.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numba
import numpy as np
import torch

from sparloom.experiments.composed_attention import gathered_attention, sampled_attention
from sparloom.experiments.kernel_peers import SPMM_PEERS
from sparloom.jit import aligned
from sparloom.nn import torch_csr
from sparloom.ops import Operands

__all__ = ["GATHERING", "SPARSE_PEERS", "gathered_bytes"]

Call = Callable[[], Any]
Bind = Callable[[Operands, int], Call]


def gathered_bytes(operands: Operands) -> int:
    """Bytes of the arrays (nnz, width) that peers which gather rows of dense operands hold: two, and their product."""
    return 12 * operands.matrix.pattern.nnz * operands.width


def _into_array(bind: Callable[..., Callable[[], None]], operands: Operands, threads: int) -> Call:
    """Bind a peer that writes to an array."""
    dense = operands.dense["B"]
    result = aligned((operands.matrix.pattern.rows, dense.shape[1]), np.float32)
    run = bind(operands.matrix, dense, result, threads=threads)

    def call() -> np.ndarray:
        run()
        return result

    return call


def _scipy(operands: Operands, threads: int) -> Call:
    """SciPy's product, on one thread."""
    csr, dense = operands.matrix.to_scipy(), operands.dense["B"]
    return lambda: csr @ dense


def _torch_reduce(operands: Operands, threads: int) -> Call:
    """torch.sparse.mm with a reduction: kernels of its own, not those of MKL."""
    torch.set_num_threads(threads)
    matrix, dense = torch_csr(operands.matrix), torch.from_numpy(operands.dense["B"])
    return lambda: torch.sparse.mm(matrix, dense, "sum")


def _sampled_addmm(operands: Operands, threads: int) -> Call:
    """torch.sparse.sampled_addmm into a tensor; A's values must be 1, it does not multiply by them."""
    torch.set_num_threads(threads)
    matrix, (left, right) = torch_csr(operands.matrix), (torch.from_numpy(operands.dense[name]) for name in ("B", "C"))
    result = aligned((operands.matrix.pattern.nnz,), np.float32)
    turned, out = right.T, torch_csr(operands.matrix.with_values(result))
    return lambda: torch.sparse.sampled_addmm(matrix, left, turned, beta=0, out=out).values()


def _gather_dot(operands: Operands, threads: int) -> Call:
    """AutoSAGE's baseline: both rows of every nonzero, gathered and multiplied."""
    torch.set_num_threads(threads)
    pattern, (left, right) = operands.matrix.pattern, (torch.from_numpy(operands.dense[name]) for name in ("B", "C"))
    rows, columns = torch.from_numpy(pattern.row_ids()), torch.from_numpy(pattern.indices)
    return lambda: (left.index_select(0, rows) * right.index_select(0, columns)).sum(1)


def _numba_sddmm(operands: Operands, threads: int) -> Call:
    """The loops that a user of Numba writes: rows in parallel, additions in any order."""
    multiply, pattern = _numba_loops(), operands.matrix.pattern
    left, right = operands.dense["B"], operands.dense["C"]
    indptr, result = pattern.indptr.astype(np.int32), aligned((pattern.nnz,), np.float32)

    def call() -> np.ndarray:
        numba.set_num_threads(threads)
        multiply(indptr, pattern.indices, left, right, result)
        return result

    return call


@cache
def _numba_loops() -> Callable[..., None]:
    def multiply(
        indptr: np.ndarray, indices: np.ndarray, left: np.ndarray, right: np.ndarray, result: np.ndarray,
    ) -> None:
        for row in numba.prange(indptr.size - 1):
            for n in range(indptr[row], indptr[row + 1]):
                column, total = indices[n], np.float32(0)
                for k in range(left.shape[1]):
                    total += left[row, k] * right[column, k]
                result[n] = total

    return numba.njit(parallel=True, fastmath=True)(multiply)


def _composed_sampled(operands: Operands, threads: int) -> Call:
    """Attention head after head."""
    torch.set_num_threads(threads)
    rows = torch.from_numpy(operands.matrix.pattern.row_ids()).long()
    return sampled_attention(torch_csr(operands.matrix), rows, _tensors(operands))


def _composed_gathered(operands: Operands, threads: int) -> Call:
    """Attention of all heads at once."""
    torch.set_num_threads(threads)
    pattern = operands.matrix.pattern
    rows, columns = (torch.from_numpy(array).long() for array in (pattern.row_ids(), pattern.indices))
    return gathered_attention(rows, columns, _tensors(operands))


def _tensors(operands: Operands) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in operands.dense.items()}


SPARSE_PEERS: Mapping[str, Mapping[str, Bind]] = MappingProxyType({
    "spmm": {**{name: partial(_into_array, bind) for name, bind in SPMM_PEERS.items()},
             "torch_reduce": _torch_reduce, "scipy": _scipy},
    "sddmm": {"sampled_addmm": _sampled_addmm, "numba": _numba_sddmm, "gather_dot": _gather_dot},
    "attention": {"composed": _composed_sampled, "gathered": _composed_gathered},
})
"""Operation -> name -> how it is bound to operands, for so many threads."""

GATHERING = ("gather_dot", "gathered")
"""Peers that need `gathered_bytes`."""
