"""Sparse operations as functions: what a matrix needs is found again by its index arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from sparloom.dispatch.csr.given import matrix_of
from sparloom.dispatch.csr.prepared import Prepared, Reduce
from sparloom.fusion import IdentityCache
from sparloom.sparse import SparseMatrix

__all__ = ["csr_attention", "prepare", "sddmm", "spmm"]

_KNOWN: IdentityCache[Prepared] = IdentityCache()


def prepare(matrix: Any, **options: Any) -> Prepared:
    """Make a sparse matrix ready for many calls.

    Args:
        matrix: as in `spmm`, a tuple with its shape.
        options: of `Prepared`.
    """
    return Prepared(matrix_of(matrix), **options)


def spmm(matrix: Any, dense: Any, *, reduce: Reduce = "sum", threads: int | None = None) -> np.ndarray:
    """Multiply a sparse matrix by a dense one, with the kernel that is fastest for both on this machine.

    The first call for a matrix and a width measures a few kernels on some rows; what it decides is kept for all
    processes of this user. Matrices are known by the identity of their index arrays, which must not be changed in place
    between calls; `prepare` what was changed, and what comes in new arrays each time.

    Args:
        matrix: A (rows, cols): SciPy matrix, (indptr, indices, values[, shape]) of NumPy arrays or others that speak
            DLPack; float32 values, int32 or int64 indices.
        dense: X (cols, width) float32, likewise.
        reduce: "sum", or "mean": divided by the nonzeros of each row.
        threads: all processors that this process may use unless given.

    Returns:
        (rows, width) float32.

    Raises:
        TypeError, ValueError: an operand is none that can be multiplied; names it and the remedy.
    """
    prepared, values = _known(matrix, dense, threads)
    return prepared.spmm(dense, reduce=reduce, values=values)


def sddmm(matrix: Any, left: Any, right: Any, *, threads: int | None = None) -> np.ndarray:
    """Multiply dense matrices where a sparse one has nonzeros: A's values * (Q KT), (nnz,) in their order.

    Args:
        matrix, threads: as in `spmm`.
        left, right: Q (rows, width), K (cols, width), float32.

    Raises:
        TypeError, ValueError: as by `spmm`.
    """
    prepared, values = _known(matrix, right, threads)
    return prepared.sddmm(left, right, values=values)


def csr_attention(matrix: Any, queries: Any, keys: Any, values: Any, *, threads: int | None = None) -> np.ndarray:
    """Let each row attend to the columns where it has nonzeros: softmax(Q KT / sqrt(d)) V, no score is ever stored.

    Args:
        matrix, threads: as in `spmm`; A's values are not read.
        queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e), float32; without heads, one.

    Returns:
        (rows, heads, e) float32, or (rows, e); 0 for rows without nonzeros.

    Raises:
        TypeError, ValueError: as by `spmm`.
    """
    prepared, _ = _known(matrix, keys, threads)
    given = (queries, keys, values)
    if all(getattr(array, "ndim", 0) == 2 for array in given):
        return prepared.attention(*(np.asarray(array)[:, None] for array in given))[:, 0]
    return prepared.attention(*given)


def _known(matrix: Any, dense: Any, threads: int | None) -> tuple[Prepared, np.ndarray]:
    """Find what was made for the index arrays of a matrix, and its values."""
    columns = dense.shape[0] if getattr(dense, "ndim", 0) else None
    if isinstance(matrix, SparseMatrix):
        arrays, values, shape = (matrix.pattern.indptr, matrix.pattern.indices), matrix.values, matrix.pattern.shape
    elif scipy.sparse.issparse(matrix) and matrix.format == "csr" and matrix.has_canonical_format:
        arrays, values, shape = (matrix.indptr, matrix.indices), matrix.data, matrix.shape
    else:
        made = matrix_of(matrix, columns=columns)
        return Prepared(made, threads=threads), made.values
    if values.dtype != np.float32:
        matrix_of(matrix)  # says why not
    arguments = {"indptr": arrays[0], "indices": arrays[1], "shape": shape, "threads": threads}
    return _KNOWN.find(arguments, lambda: Prepared(matrix_of(matrix), threads=threads)), values
