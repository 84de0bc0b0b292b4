"""Sparse matrix times dense matrix: D(i,k) = sum over j of A(i,j) B(j,k)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Operands, Work, check_width, uniform
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["SpMM"]


@dataclass(frozen=True)
class SpMM:
    """A (rows, cols) sparse, B (cols, width), D (rows, width)."""

    name: str = "spmm"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B from [-1, 1)."""
        check_width(width)
        rng = np.random.default_rng(seed)
        return Operands(matrix.astype(np.float32), {"B": uniform((matrix.pattern.cols, width), rng)})

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Add up row by row in float64."""
        pattern, values = operands.matrix.pattern, operands.matrix.values.astype(np.float64)
        dense = operands.dense["B"]
        result = np.zeros((pattern.rows, operands.width))
        for row in range(pattern.rows):
            nonzeros = slice(pattern.indptr[row], pattern.indptr[row + 1])
            result[row] = values[nonzeros] @ dense[pattern.indices[nonzeros]].astype(np.float64)
        return result

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count a multiplication and an addition per nonzero and column; every operand moved once, D written once."""
        moved = 8 * pattern.nnz + 8 * (pattern.rows + 1) + 4 * width * (pattern.cols + pattern.rows)
        return Work(flops=2 * pattern.nnz * width, bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each element of D adds up, (rows, 1), for tolerances."""
        return pattern.row_lengths()[:, None]

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        pattern, largest = operands.matrix.pattern, np.zeros(operands.matrix.pattern.rows)
        np.maximum.at(largest, pattern.row_ids(), np.abs(operands.matrix.values))
        return largest[:, None] * np.abs(operands.dense["B"]).max(initial=0)
