"""Products in NumPy and SciPy, for machines on which no kernel can be compiled.

`SPARLOOM_NO_COMPILER=error` raises instead, so that nobody measures these by mistake; "scipy", the default, warns once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse

from sparloom.errors import NoCompiler
from sparloom.ops import Operands
from sparloom.platforms import Family
from sparloom.platforms.cpu_kernels import element_library, kernel_library
from sparloom.platforms.cuda import as_float32
from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix
from sparloom.tuning.sparse.inputs import HALF_BYTES, rounded

__all__ = ["FallbackReplay", "kernels_available"]

VARIABLE = "SPARLOOM_NO_COMPILER"
SOURCES = {"spmm": "spmm", "spmm_mean": "spmm", "spmm_max": "spmm_max", "sddmm": "sddmm", "attention": "attention",
           "transposed": "transposed"}
BLOCK = 1 << 20  # numbers of an intermediate array at once

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


class FallbackReplay:
    """Computes an operation without kernels.

    Args:
        family: allocates results.
        argmax: also return the argmax of a maximum.
    """

    def __init__(self, op: str, family: Family, *, argmax: bool) -> None:
        self._compute, self._family, self._argmax = OPERATIONS[op], family, argmax

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute, into `out` if it is given; 16-bit numbers in float32."""
        result = self._family.result(operands) if out is None else out
        wide, own = _widened(operands), result
        if result.itemsize == HALF_BYTES:
            own = np.empty(result.shape, np.float32)
        argmax = self._family.argmax(operands) if self._argmax else None
        if argmax is not None:
            _maximum(wide, own, argmax)
        else:
            self._compute(wide, own)
        if own is not result:
            result[...] = rounded(own, result.dtype)
        return result if argmax is None else (result, argmax)


def _widened(operands: Operands) -> Operands:
    """Convert 16-bit numbers to float32."""
    if operands.value_bytes != HALF_BYTES:
        return operands
    values = as_float32(operands.matrix.values)
    return Operands(SparseMatrix(operands.matrix.pattern, values, values.dtype), {
        name: as_float32(array) for name, array in operands.dense.items()})


def _mean(operands: Operands, result: np.ndarray) -> None:
    _product(operands, result)
    result /= np.maximum(operands.matrix.pattern.row_lengths(), 1)[:, None].astype(result.dtype)


def _product(operands: Operands, result: np.ndarray) -> None:
    pattern = operands.matrix.pattern
    matrix = scipy.sparse.csr_matrix((operands.matrix.values, pattern.indices, pattern.indptr), shape=pattern.shape)
    result[...] = matrix @ operands.dense["B"]


def _maximum(operands: Operands, result: np.ndarray, argmax: np.ndarray | None = None) -> None:
    """Take the largest product of each row; the argmax is the first nonzero with it, or with NaN."""
    pattern, values, dense = operands.matrix.pattern, operands.matrix.values, operands.dense["B"]
    result[...] = 0
    if argmax is not None:
        argmax[...] = -1
    for rows, nonzeros, starts in _blocks(pattern, operands.width):
        products = values[nonzeros, None] * dense[pattern.indices[nonzeros]]
        largest = np.maximum.reduceat(products, starts)
        result[rows] = largest
        if argmax is not None:
            counts = np.diff(np.append(starts, products.shape[0]))
            found = (products == np.repeat(largest, counts, axis=0)) | np.isnan(products)
            index = np.arange(nonzeros.start, nonzeros.stop, dtype=np.int64)[:, None]
            argmax[rows] = np.minimum.reduceat(np.where(found, index, pattern.nnz), starts)


def _sampled(operands: Operands, result: np.ndarray) -> None:
    pattern, left, right = operands.matrix.pattern, operands.dense["B"], operands.dense["C"]
    rows = pattern.row_ids()
    step = max(1, BLOCK // max(1, left.shape[1]))
    for start in range(0, pattern.nnz, step):
        part = slice(start, start + step)
        np.einsum("nw,nw->n", left[rows[part]], right[pattern.indices[part]], out=result[part])
    result *= operands.matrix.values


def _attention(operands: Operands, result: np.ndarray) -> None:
    """Normalise the scores of each row by a softmax, after subtracting the largest one."""
    pattern, dense = operands.matrix.pattern, operands.dense
    queries, keys, values = dense["Q"], dense["K"], dense["V"]
    scale, row_ids = queries.dtype.type(queries.shape[2] ** -0.5), pattern.row_ids()
    result[...] = 0
    for rows, nonzeros, starts in _blocks(pattern, queries.shape[1] * max(queries.shape[2], values.shape[2])):
        columns, counts = pattern.indices[nonzeros], np.diff(np.append(starts, nonzeros.stop - nonzeros.start))
        scores = scale * np.einsum("nhd,nhd->nh", queries[row_ids[nonzeros]], keys[columns])
        weights = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), counts, axis=0))
        sums = np.add.reduceat(weights, starts)
        result[rows] = np.add.reduceat(weights[:, :, None] * values[columns], starts) / sums[:, :, None]


def _blocks(pattern: Pattern, numbers: int) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
    """Cut the rows with nonzeros into blocks whose intermediate arrays stay small, of at least one row.

    Args:
        numbers: of an intermediate array, for each nonzero.

    Yields:
        Rows of a block, their nonzeros, and where each row begins among these.
    """
    rows = np.flatnonzero(pattern.row_lengths())
    ends, limit, first = pattern.indptr[rows + 1], max(1, BLOCK // max(1, numbers)), 0
    while first < rows.size:
        begin = int(pattern.indptr[rows[first]])
        last = max(first + 1, int(np.searchsorted(ends, begin + limit, side="right")))
        block = rows[first:last]
        yield block, slice(begin, int(ends[last - 1])), pattern.indptr[block] - begin
        first = last


OPERATIONS: Mapping[str, Callable[[Operands, np.ndarray], None]] = {
    "spmm": _product, "spmm_mean": _mean, "spmm_max": _maximum, "sddmm": _sampled, "attention": _attention}
