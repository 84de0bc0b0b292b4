"""SpMM by cuSPARSE through CuPy, row-major, prepared once for a pattern: what our kernels must beat on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparloom.ops import Operands
from sparloom.platforms.cuda.csr import DeviceMatrix

__all__ = ["cusparse_spmm"]

ORDER_ROW = 2  # CUSPARSE_ORDER_ROW
FLOAT = 0  # CUDA_R_32F
ALGORITHMS = {"default": 0, "alg2": 6}  # CUSPARSE_SPMM_ALG_DEFAULT, CUSPARSE_SPMM_CSR_ALG2: which is faster varies


def cusparse_spmm(matrix: DeviceMatrix, algorithm: str) -> Callable[[Operands], Any]:
    """Prepare products with a pattern: A's values and X (cols, width) float32 under "B" give (rows, width).

    CuPy's own product wants X in columns and copies it in every call, so its lower interface is used.

    Args:
        algorithm: "default" or "alg2".
    """
    import cupy
    import cupyx.cusparse
    import cupyx.scipy.sparse
    from cupy_backends.cuda.libs import cusparse

    pattern, number = matrix.pattern, ALGORITHMS[algorithm]
    one_type = np.int32 if pattern.nnz < 2**31 else np.int64
    csr = cupyx.scipy.sparse.csr_matrix(pattern.shape, dtype=np.float32)
    csr.data, csr.indices, csr.indptr = (
        matrix.values, matrix.placed.indices.astype(one_type), matrix.placed.indptr.astype(one_type))
    sparse = cupyx.cusparse.SpMatDescriptor.create(csr)
    alpha, beta = (np.array(number, np.float32).ctypes for number in (1, 0))
    room: dict[int, Any] = {}

    def product(operands: Operands) -> Any:
        csr.data, x = operands.matrix.values, operands.dense["B"]  # the descriptor holds addresses of arrays of `csr`
        cusparse.spMatSetValues(sparse.desc, csr.data.data.ptr)
        result = cupy.empty((pattern.rows, x.shape[1]), np.float32)
        right, written = _described(cusparse, x), _described(cusparse, result)
        given = (cupy.cuda.device.get_cusparse_handle(), cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE,
                 cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE, alpha.data, sparse.desc, right, beta.data, written, FLOAT,
                 number)
        try:
            if x.shape[1] not in room:
                room[x.shape[1]] = cupy.empty(max(1, cusparse.spMM_bufferSize(*given)), np.int8)
            cusparse.spMM(*given, room[x.shape[1]].data.ptr)
        finally:
            cusparse.destroyDnMat(right)
            cusparse.destroyDnMat(written)
        return result

    return product


def _described(cusparse: Any, array: Any) -> Any:
    rows, cols = array.shape
    return cusparse.createDnMat(rows, cols, cols, array.data.ptr, FLOAT, ORDER_ROW)
