"""SpMM and the tall GEMM as users have them without us, bound to arrays that are there before the call."""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import numba
import numpy as np
import torch

from sparloom.experiments.mkl import mkl_spmm
from sparloom.nn import torch_csr
from sparloom.sparse import SparseMatrix

__all__ = ["SPMM_PEERS", "peer_versions", "torch_gemm"]

Call = Callable[[], None]
PACKAGES = ("torch", "mkl", "numba", "scipy", "numpy")


def peer_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Name the versions of the packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def torch_gemm(left: np.ndarray, right: np.ndarray, result: np.ndarray, *, threads: int) -> Call:
    """Multiply by torch.mm."""
    torch.set_num_threads(threads)
    first, second, out = (torch.from_numpy(array) for array in (left, right, result))
    return lambda: torch.mm(first, second, out=out)


def torch_spmm(matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int) -> Call:
    """Multiply by torch.mm with a CSR tensor."""
    torch.set_num_threads(threads)
    left, right, out = torch_csr(matrix), torch.from_numpy(dense), torch.from_numpy(result)
    return lambda: torch.mm(left, right, out=out)


def numba_spmm(matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int) -> Call:
    """Multiply by the loops that a user of Numba writes: rows in parallel, additions in any order."""
    multiply, indptr = _numba_loops(), matrix.pattern.indptr.astype(np.int32)

    def run() -> None:
        numba.set_num_threads(threads)
        multiply(indptr, matrix.pattern.indices, matrix.values, dense, result)

    return run


def scipy_spmm(matrix: SparseMatrix, dense: np.ndarray, result: np.ndarray, *, threads: int) -> Call:
    """Multiply by SciPy, on one thread and into a new array; the copy into `result` is in the time."""
    csr = matrix.to_scipy()
    return lambda: np.copyto(result, csr @ dense)


SPMM_PEERS: Mapping[str, Callable[..., Call]] = MappingProxyType(
    {"torch": torch_spmm, "mkl": mkl_spmm, "numba": numba_spmm, "scipy": scipy_spmm})


@cache
def _numba_loops() -> Callable[..., None]:
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
