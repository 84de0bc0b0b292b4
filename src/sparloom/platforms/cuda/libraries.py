"""SpMM by cuSPARSE through CuPy, row-major, prepared once for a pattern: what our kernels must beat on a GPU.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparloom.ops import Operands
from sparloom.platforms.cuda.operands import ELEMENTS, DeviceMatrix

__all__ = ["cusparse_spmm"]

ORDER_ROW = 2  # CUSPARSE_ORDER_ROW
FLOAT = 0  # CUDA_R_32F, of sums
NUMBERS = {"float": FLOAT, "Half": 2, "Bfloat": 14}  # CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
ALGORITHMS = {"default": 0, "alg2": 6}  # CUSPARSE_SPMM_ALG_DEFAULT, CUSPARSE_SPMM_CSR_ALG2: which is faster varies


def cusparse_spmm(matrix: DeviceMatrix, algorithm: str) -> Callable[..., Any]:
    """Prepare products with a pattern: A's values and X (cols, width) of their type under "B" give (rows, width).

    What they are given second is overwritten in place of a new array. Sums are float32. CuPy's own product wants X in
    columns and copies it in every call, and its sparse matrices have no short numbers, so its lower interface is used.

    Args:
        algorithm: "default" or "alg2".
    """
    import cupy
    import cupyx.cusparse
    from cupy_backends.cuda.libs import cusparse

    pattern, number = matrix.pattern, ALGORITHMS[algorithm]
    one_type, index = (np.int32, cusparse.CUSPARSE_INDEX_32I) if pattern.nnz < 2**31 else (
        np.int64, cusparse.CUSPARSE_INDEX_64I)
    arrays = [  # descriptors hold their addresses
        matrix.placed.indptr.astype(one_type), matrix.placed.indices.astype(one_type), matrix.values]
    described: dict[np.dtype, Any] = {}
    alpha, beta = (np.array(number, np.float32).ctypes for number in (1, 0))
    room: dict[tuple[int, np.dtype], Any] = {}

    def sparse(values: Any) -> Any:
        if values.dtype not in described:
            described[values.dtype] = cupyx.cusparse.SpMatDescriptor(cusparse.createCsr(
                pattern.rows, pattern.cols, pattern.nnz, *(array.data.ptr for array in (*arrays[:2], values)), index,
                index, cusparse.CUSPARSE_INDEX_BASE_ZERO, NUMBERS[ELEMENTS[values.dtype]]), None, cusparse.destroySpMat)
        descriptor = described[values.dtype].desc
        cusparse.spMatSetValues(descriptor, values.data.ptr)
        return descriptor

    def product(operands: Operands, out: Any | None = None) -> Any:
        arrays[2], x = operands.matrix.values, operands.dense["B"]
        result = cupy.empty((pattern.rows, x.shape[1]), x.dtype) if out is None else out
        right, written = _described(cusparse, x), _described(cusparse, result)
        given = (cupy.cuda.device.get_cusparse_handle(), cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE,
                 cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE, alpha.data, sparse(arrays[2]), right, beta.data, written,
                 FLOAT, number)
        try:
            case = x.shape[1], x.dtype
            if case not in room:
                room[case] = cupy.empty(max(1, cusparse.spMM_bufferSize(*given)), np.int8)
            cusparse.spMM(*given, room[case].data.ptr)
        finally:
            cusparse.destroyDnMat(right)
            cusparse.destroyDnMat(written)
        return result

    return product


def _described(cusparse: Any, array: Any) -> Any:
    rows, cols = array.shape
    return cusparse.createDnMat(rows, cols, cols, array.data.ptr, NUMBERS[ELEMENTS[array.dtype]], ORDER_ROW)
