"""What users pass on a GPU: index arrays, values and dense operands of any library that speaks DLPack.

Also `__cuda_array_interface__`. Values and dense operands are used where they lie; indices are read by the processor
once, as decisions need them, and stay where they lie if they are of the types that kernels read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparloom.platforms import DeviceMatrix, DevicePattern, Gpu, on_cuda
from sparloom.platforms.cuda.operands import BITS, ELEMENTS, HubDegrees
from sparloom.sparse import Pattern
from sparloom.tuning.sparse.given import shape_of

__all__ = ["cuda_dense", "cuda_matrix", "cuda_parts"]

Parts = tuple[Any, Any, Any, Any]


def cuda_parts(given: Any, columns: int | None) -> Parts | None:
    """Take (indptr, indices, values, shape) of a matrix on a GPU; None for anything else.

    Args:
        given: a CSR matrix of CuPy, or (indptr, indices, values[, shape]) with values on a GPU.
        columns: of the matrix, where a tuple has no shape.
    """
    if isinstance(given, tuple):
        if len(given) not in (3, 4) or not any(map(on_cuda, given[:3])):
            return None
        return *given[:3], given[3] if len(given) == 4 else (given[0].shape[0] - 1, columns)
    if getattr(given, "format", None) == "csr" and on_cuda(getattr(given, "data", None)):
        return given.indptr, given.indices, given.data, given.shape
    return None


def cuda_matrix(gpu: Gpu, parts: Parts) -> DeviceMatrix:
    """Take a matrix on a GPU.

    Raises:
        TypeError: an array is not on the device, or of another type.
        ValueError: the arrays are no matrix; names what is wrong, and where.
    """
    *arrays, shape = parts
    if shape[1] is None:
        raise ValueError("(indptr, indices, values) does not say how many columns A has: add the shape")
    indptr, indices, values = (gpu.adopt(array, name) for array, name in zip(
        arrays, ("indptr", "indices", "values"), strict=True))
    for part, name in ((indptr, "indptr"), (indices, "indices")):
        if part.dtype not in (np.int32, np.int64):
            raise TypeError(f"{name} of A is {part.dtype}: it must be int32 or int64")
    try:
        pattern = Pattern(shape_of(shape), gpu.download(indptr), gpu.download(indices))
    except ValueError as error:
        raise ValueError(f"A is no CSR matrix with columns that rise in every row: {error}; A.sum_duplicates() of "
                         "CuPy sorts them") from error
    placed = DevicePattern(
        pattern, indptr if indptr.dtype == np.int64 else gpu.upload(pattern.indptr),
        indices if indices.dtype == np.int32 else gpu.upload(pattern.indices), HubDegrees(pattern))
    return DeviceMatrix(gpu, placed, None).with_values(values)


def cuda_dense(gpu: Gpu, given: Any, name: str, *, rows: int, axes: int, bits: bool) -> Any:
    """Take a dense operand on a GPU, as `sparloom.tuning.sparse.given.dense_of` does one of the processor.

    Args:
        bits: uint16 may be there, as the bits of bfloat16.
    """
    array = gpu.adopt(given, name)
    if array.dtype not in ELEMENTS or (array.dtype == BITS and not bits):
        raise TypeError(f"{name} is {array.dtype}: convert it to float32 or float16")
    if array.ndim != axes or array.shape[0] != rows:
        wanted = {2: f"({rows}, width)", 3: f"({rows}, heads, width)"}[axes]
        raise ValueError(f"{name} has shape {array.shape}: it must be {wanted}")
    return array
