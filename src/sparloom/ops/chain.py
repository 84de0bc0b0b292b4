"""What the products of three matrices have in common: which operands they draw, and how exact a result must be."""

import numpy as np

from sparloom.ops.op import check_width, uniform
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["check_inner", "drawn", "multiply", "reached_terms", "row_peaks"]

BLOCK = 8192  # nonzeros at once: bounds the memory of the oracles


def check_inner(inner: int | None, width: int) -> int:
    """Give the extent that B and C share: `inner`, or as many columns as D has."""
    check_width(width)
    if inner is not None and inner < 1:
        raise ValueError(f"inner {inner} must be at least 1: B needs columns")
    return width if inner is None else inner


def drawn(shape: tuple[int, int], rng: np.random.Generator, dtype: str) -> np.ndarray:
    """Draw a dense operand from [-1, 1) with the digits of float32."""
    return uniform(shape, rng).astype(dtype, copy=False)


def multiply(matrix: SparseMatrix, dense: np.ndarray) -> np.ndarray:
    """Multiply a sparse (rows, cols) by a dense matrix (cols, width) in float64: (rows, width)."""
    pattern, values = matrix.pattern, matrix.values.astype(np.float64)
    rows, result = pattern.row_ids(), np.zeros((pattern.rows, dense.shape[1]))
    for start in range(0, pattern.nnz, BLOCK):
        part = slice(start, start + BLOCK)
        products = values[part, None] * dense[pattern.indices[part]].astype(np.float64)
        np.add.at(result, rows[part], products)
    return result


def row_peaks(matrix: SparseMatrix) -> np.ndarray:
    """Find the largest magnitude in each row, 0 where there is none: (rows, 1)."""
    largest = np.zeros(matrix.pattern.rows)
    np.maximum.at(largest, matrix.pattern.row_ids(), np.abs(matrix.values))
    return largest[:, None]


def reached_terms(pattern: Pattern, right: Pattern) -> np.ndarray:
    """Count the products of nonzeros A(i,j) B(j,l) in each row i: (rows, 1)."""
    lengths = np.concatenate([[0], np.cumsum(right.row_lengths()[pattern.indices])])
    return (lengths[pattern.indptr[1:]] - lengths[pattern.indptr[:-1]])[:, None]
