"""Jacobi's method as repeated x -> M x + g."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["JacobiIteration"]


@dataclass(frozen=True)
class JacobiIteration:
    """M = I - w / D A and g = w / D b, D being the diagonal of A and w the relaxation.

    Args:
        matrix: M (n, n); its diagonal is not stored where w = 1.
        scale: (n,), w / D.
    """

    matrix: SparseMatrix
    scale: np.ndarray

    @classmethod
    def of(cls, matrix: SparseMatrix, *, relaxation: float, dtype: DTypeLike) -> "JacobiIteration":
        """Split A.

        Args:
            relaxation: 1 is Jacobi's method itself; a smaller one makes more matrices converge: for a symmetric
                positive definite A everything below 2 / (largest eigenvalue of A / D).
            dtype: of M.

        Raises:
            ValueError: A is not square, its diagonal holds a zero or nothing, or the relaxation is not above 0.
        """
        pattern = matrix.pattern
        if pattern.rows != pattern.cols:
            raise ValueError(f"a {pattern.rows} x {pattern.cols} matrix: Jacobi's method solves square systems")
        if not relaxation > 0:
            raise ValueError(f"relaxation {relaxation}: give one above 0, 1 for Jacobi's method itself")
        on_diagonal = pattern.row_ids() == pattern.indices
        values = matrix.values.astype(np.float64)
        diagonal = np.zeros(pattern.rows)
        diagonal[pattern.indices[on_diagonal]] = values[on_diagonal]
        zero = np.flatnonzero(diagonal == 0)
        if zero.size:
            raise ValueError(f"{zero.size} zeros on the diagonal, the first in row {zero[0]}: Jacobi's method divides "
                             "by it; reorder the rows, or take another method")
        scale = relaxation / diagonal
        values *= -scale[pattern.row_ids()]
        if relaxation == 1:
            kept, indptr = ~on_diagonal, pattern.indptr - np.arange(pattern.rows + 1)  # one less in every row
            return cls(SparseMatrix(Pattern(pattern.shape, indptr, pattern.indices[kept]), values[kept], dtype), scale)
        values[on_diagonal] = 1 - relaxation
        return cls(SparseMatrix(pattern, values, dtype), scale)

    def constant(self, right_hand_sides: np.ndarray) -> np.ndarray:
        """Give g (n, columns) for right-hand sides of that shape."""
        return self.scale[:, None] * right_hand_sides
