"""What users pass: sparse matrices of several kinds, dense arrays of any library that speaks DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["dense_of", "matrix_of"]

FLOAT = np.dtype(np.float32)


def matrix_of(given: Any, *, columns: int | None = None) -> SparseMatrix:
    """Take a sparse matrix.

    Args:
        given: SparseMatrix, Pattern (ones), SciPy matrix of any format, or (indptr, indices, values[, shape]); columns
            that are not sorted are sorted in a copy, and positions that are there twice are added up.
        columns: of the matrix, where a tuple has no shape.

    Raises:
        TypeError: something else, or values that are not float32.
        ValueError: the arrays are no matrix in CSR; names what is wrong, and where.
    """
    if isinstance(given, SparseMatrix):
        return given
    if isinstance(given, Pattern):
        return SparseMatrix(given, np.ones(given.nnz, np.float32))
    if isinstance(given, tuple):
        given = _of_arrays(given, columns)
    if not scipy.sparse.issparse(given):
        raise TypeError(f"A is {type(given).__name__}: give a SciPy matrix or (indptr, indices, values, shape)")
    if given.dtype != FLOAT:
        raise TypeError(f"values of A are {given.dtype}: pass A.astype(numpy.float32)")
    rows = given if given.format == "csr" else given.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return SparseMatrix(Pattern(rows.shape, rows.indptr, rows.indices), rows.data)


def dense_of(given: Any, name: str, *, rows: int, axes: int) -> np.ndarray:
    """Take a dense operand, row-major without gaps; a copy where it is not.

    Args:
        given: NumPy array, or one of another library that speaks DLPack, in the memory of the processor.
        rows: that it must have.
        axes: likewise.

    Raises:
        TypeError: not float32, or on another device.
        ValueError: of another shape.
    """
    array = _array(given, name)
    if array.dtype != FLOAT:
        raise TypeError(f"{name} is {array.dtype}: pass {name}.astype(numpy.float32)")
    if array.ndim != axes or array.shape[0] != rows or 0 in array.shape[1:]:
        wanted = {2: f"({rows}, width)", 3: f"({rows}, heads, width)"}[axes]
        raise ValueError(f"{name} has shape {array.shape}: it must be {wanted}")
    return np.require(array, requirements=["C", "A"])


def _of_arrays(given: tuple[Any, ...], columns: int | None) -> scipy.sparse.csr_array:
    if len(given) not in (3, 4):
        raise TypeError(f"A is a tuple of {len(given)}: give (indptr, indices, values) or (indptr, indices, values, "
                        "shape)")
    indptr, indices, values = (_array(part, name) for part, name in zip(
        given[:3], ("indptr", "indices", "values"), strict=True))
    for part, name in ((indptr, "indptr"), (indices, "indices"), (values, "values")):
        if part.ndim != 1:
            raise ValueError(f"{name} of A has shape {part.shape}: it must have one axis")
    for part, name in ((indptr, "indptr"), (indices, "indices")):
        if part.dtype not in (np.int32, np.int64):
            raise TypeError(f"{name} of A is {part.dtype}: it must be int32 or int64")
    if len(given) == 3 and columns is None:
        raise ValueError("(indptr, indices, values) does not say how many columns A has: add the shape")
    shape = tuple(given[3]) if len(given) == 4 else (indptr.size - 1, columns)
    if values.size != indices.size:
        raise ValueError(f"A has {values.size} values for {indices.size} indices: give one for each")
    Pattern(shape, indptr, np.zeros(0, np.int32)) if not indices.size else _check(shape, indptr, indices)
    return scipy.sparse.csr_array((values, indices, indptr), shape=shape)


def _check(shape: tuple[int, int], indptr: np.ndarray, indices: np.ndarray) -> None:
    """Refuse what SciPy would take without looking, and read out of bounds for."""
    rows, cols = shape
    if indptr.size != rows + 1 or indptr[0] != 0 or indptr[-1] != indices.size or (np.diff(indptr) < 0).any():
        raise ValueError(f"indptr of A must be {rows + 1} numbers that rise from 0 to {indices.size}, one more than "
                         "rows")
    if not 0 <= indices.min() <= indices.max() < cols:
        raise ValueError(f"indices of A run from {indices.min()} to {indices.max()}: columns are 0 to {cols - 1}")


def _array(given: Any, name: str) -> np.ndarray:
    if isinstance(given, np.ndarray):
        return given
    if hasattr(given, "__dlpack__"):
        try:
            return np.from_dlpack(given)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"{name} cannot be read by the processor ({error}): move it there, or use sparloom.nn") \
                from error
    raise TypeError(f"{name} is {type(given).__name__}: give a NumPy array, or one that speaks DLPack")
