"""Products by SciPy and the definitions of operations, for machines on which no kernel can be compiled.

`SPARLOOM_NO_COMPILER=error` raises instead, so that nobody measures these by mistake; "scipy", the default, warns once.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any

import numpy as np

from sparloom.errors import NoCompiler
from sparloom.ops import Op, Operands
from sparloom.platforms import Family
from sparloom.platforms.cpu_kernels import element_library, kernel_library
from sparloom.platforms.cuda import as_float32
from sparloom.sparse import BFLOAT16, SparseMatrix
from sparloom.tuning.sparse.inputs import HALF_BYTES, rounded

__all__ = ["computed", "kernels_available"]

VARIABLE = "SPARLOOM_NO_COMPILER"
SOURCES = {"spmm": "spmm", "spmm_mean": "spmm", "spmm_max": "spmm_max", "sddmm": "sddmm", "attention": "attention",
           "transposed": "transposed"}

log = logging.getLogger(__name__)


@cache
def kernels_available(op: str, dtype: str = "float32") -> bool:
    """Tell whether the kernels of an operation are there or can be compiled for numbers of a type.

    Raises:
        NoCompiler: they cannot, and SPARLOOM_NO_COMPILER is "error".
        ValueError: SPARLOOM_NO_COMPILER is neither "scipy" nor "error".
    """
    chosen = os.environ.get(VARIABLE) or "scipy"
    if chosen not in ("scipy", "error"):
        raise ValueError(f"{VARIABLE}={chosen!r}: give scipy or error")
    try:
        kernel_library("traversal")
        element_library(SOURCES[op], BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype))
    except NoCompiler as error:
        if chosen == "error":
            raise
        _warn(str(error))
        return False
    return True


@cache
def _warn(reason: str) -> None:
    log.warning("sparse products run in SciPy and NumPy, on one thread: %s. %s=error raises instead", reason,
                VARIABLE)


def computed(op: Op, family: Family, operands: Operands, *, argmax: bool = False) -> Any:
    """Compute an operation without kernels; 16-bit numbers in float32.

    Args:
        family: allocates results.
        argmax: also return the argmax of a maximum.
    """
    result, pattern = family.result(operands), operands.matrix.pattern
    if result.itemsize == HALF_BYTES:
        values = as_float32(operands.matrix.values)
        operands = Operands(SparseMatrix(pattern, values, values.dtype), {
            name: as_float32(array) for name, array in operands.dense.items()})
    if op.name in ("spmm", "spmm_mean"):
        wide = operands.matrix.to_scipy() @ operands.dense["B"]
        if op.name == "spmm_mean":
            wide /= np.maximum(pattern.row_lengths(), 1)[:, None].astype(wide.dtype)
    else:
        wide = op.oracle(operands)
    result[...] = rounded(wide.astype(np.float32), result.dtype) if result.itemsize == HALF_BYTES else wide
    return (result, _argmax(operands, family.argmax(operands))) if argmax else result


def _argmax(operands: Operands, index: np.ndarray) -> np.ndarray:
    """Fill in the first nonzero of each row whose product is the largest, or NaN; -1 in rows without nonzeros."""
    matrix, pattern = operands.matrix, operands.matrix.pattern
    index[...] = -1
    for row in np.flatnonzero(pattern.row_lengths()):
        nonzeros = slice(*pattern.indptr[row:row + 2])
        products = matrix.values[nonzeros, None] * operands.dense["B"][pattern.indices[nonzeros]]
        index[row] = nonzeros.start + products.argmax(axis=0)
    return index
