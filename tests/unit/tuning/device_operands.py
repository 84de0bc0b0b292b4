"""Operands of spmm, sddmm and attention on an emulated GPU, and their expected results."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from emulated_gpu import Foreign, OnDevice

from sparloom.ops import Op, Operands, assert_close
from sparloom.platforms import DeviceMatrix
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import MeasurementBudget, PlanCache
from sparloom.tuning.sparse import CsrPolicy, CudaBackend, Prepared, Product, gather_dot

__all__ = ["COLS", "LIBRARIES", "POLICY", "ROWS", "WIDTH", "close", "host", "parts", "prepared"]

ROWS, COLS, WIDTH = 60, 40, 8
POLICY = CsrPolicy(least_nonzeros=100, parts=2, effort=MeasurementBudget(
    candidates=3, repetitions=1, pairs=(2, 2), executions=30, seconds=60.0, short_seconds=0.0))


def numpy_spmm(matrix: DeviceMatrix, threads: int) -> Product:
    """Compute the product in place of a library of the device."""
    csr = scipy.sparse.csr_array((np.asarray(matrix.values, np.float32), matrix.pattern.indices, matrix.pattern.indptr),
                                 shape=matrix.pattern.shape)

    def product(operands: Operands) -> OnDevice:
        csr.data, x = np.asarray(operands.matrix.values, np.float32), np.asarray(operands.dense["B"])
        return (csr @ x.astype(np.float32)).astype(x.dtype).view(OnDevice)

    return product


LIBRARIES = {"spmm": {"library": numpy_spmm}, "sddmm": {"gather_dot": gather_dot}}


def host(seed: int = 0) -> SparseMatrix:
    """A matrix with empty rows and a full one."""
    rng = np.random.default_rng(seed)
    there = rng.random((ROWS, COLS)) < 0.15
    there[7], there[[0, 20, ROWS - 1]] = True, False
    pattern = Pattern.from_coo(*np.nonzero(there), there.shape)
    return SparseMatrix(pattern, rng.uniform(-1, 1, pattern.nnz))


def parts(matrix: SparseMatrix, *, wide: bool = False) -> tuple:
    """Convert the matrix to arrays on the GPU."""
    indices = matrix.pattern.indices.astype(np.int64) if wide else matrix.pattern.indices
    return *(Foreign(array.copy()) for array in (matrix.pattern.indptr, indices, matrix.values)), matrix.pattern.shape


def close(op: Op, matrix: SparseMatrix, given: dict[str, np.ndarray], found: np.ndarray) -> None:
    """Compare with the definition, within the rounding errors of the sums."""
    operands = Operands(matrix, given)
    assert isinstance(found, OnDevice)
    assert_close(np.asarray(found), op.oracle(operands), terms=op.terms(matrix.pattern, operands.width),
                 scale=op.scale(operands))


def prepared(where: CudaBackend, tmp_path: Path, **options: Any) -> Prepared:
    """Prepare the matrix on the device, with a small measurement budget."""
    return Prepared(where.matrix(host()), where=where, cache=PlanCache(tmp_path), **{"policy": POLICY, **options})
