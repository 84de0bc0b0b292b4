"""Arguments of fused functions: sparse operands with `A.p`, `A.i`, `A.x`, and the key under which calls are cached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Csr", "check_csr", "csr", "identity_key"]


class Csr(NamedTuple):
    """A sparse matrix with the attributes of Listing 1: row r holds the nonzeros p[r] to p[r + 1] of i (columns) and x.

    Args:
        p: (rows + 1,) int32 or int64.
        i: (nnz,) int32 or int64.
        x: (nnz,) float32 or float64.
    """

    p: np.ndarray
    i: np.ndarray
    x: np.ndarray
    shape: tuple[int, int]


def csr(matrix: Any) -> Csr:
    """View a sparse matrix as Csr, without a copy if it is in CSR already.

    Args:
        matrix: SparseMatrix, Pattern (values are float32 ones), SciPy matrix of any format, or Csr.
    """
    match matrix:
        case Csr():
            return matrix
        case SparseMatrix():
            pattern = matrix.pattern
            return Csr(pattern.indptr, pattern.indices, matrix.values, pattern.shape)
        case Pattern():
            return Csr(matrix.indptr, matrix.indices, np.ones(matrix.nnz, np.float32), matrix.shape)
    rows = matrix if getattr(matrix, "format", None) == "csr" else scipy.sparse.csr_array(matrix)
    return Csr(rows.indptr, rows.indices, rows.data, rows.shape)


def check_csr(matrix: Csr, name: str) -> None:
    """Check what compiled code relies on, in time proportional to the nonzeros.

    Raises:
        ValueError: the row pointers do not increase from 0 to nnz, or a column is outside the matrix.
    """
    rows, cols = matrix.shape
    p, i = matrix.p, matrix.i
    if p.shape != (rows + 1,) or p[0] != 0 or p[-1] != i.size or (p[1:] < p[:-1]).any() or i.shape != matrix.x.shape:
        raise ValueError(f"row pointers of {name}, {rows} rows and {i.size} nonzeros, must be {rows + 1} numbers that "
                         f"rise from 0 to {i.size}, with one value per nonzero")
    if i.size and not 0 <= i.min() <= i.max() < cols:
        raise ValueError(f"columns of {name} run from {i.min()} to {i.max()}: they must lie in 0 to {cols - 1}")


def identity_key(arguments: Mapping[str, Any]) -> tuple[list[np.ndarray], tuple[Any, ...]]:
    """Return the key of a call for an `IdentityCache`: its index arrays; shapes, types and scalars of all arguments."""
    return _index_arrays(arguments), tuple(_description(value) for value in arguments.values())


def _index_arrays(arguments: Mapping[str, Any]) -> list[np.ndarray]:
    found = []
    for value in arguments.values():
        parts = (value.p, value.i) if isinstance(value, Csr) else (value,)
        found += [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    return found


def _description(value: Any) -> Any:
    """Return the part of the key for one argument: its shape and type, or its value if it is a scalar."""
    if isinstance(value, Csr):
        return value.shape, str(value.x.dtype)
    return (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else value
