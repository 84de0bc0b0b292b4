"""Sampled dense times dense: D(i,j) = A(i,j) * sum over k of B(i,k) C(j,k), on the pattern of A."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Operands, Work, check_width, uniform
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["SDDMM"]

BLOCK = 8192  # nonzeros at once: bounds the memory of the oracle


@dataclass(frozen=True)
class SDDMM:
    """A (rows, cols) sparse, B (rows, width), C (cols, width); the result holds the values of D in CSR order."""

    name: str = "sddmm"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B and C from [-1, 1)."""
        check_width(width)
        rng = np.random.default_rng(seed)
        pattern = matrix.pattern
        dense = {"B": uniform((pattern.rows, width), rng), "C": uniform((pattern.cols, width), rng)}
        return Operands(matrix.astype(np.float32), dense)

    def oracle(self, operands: Operands) -> Float64[np.ndarray, " nnz"]:
        """Form each dot product in float64."""
        pattern, rows = operands.matrix.pattern, operands.matrix.pattern.row_ids()
        left, right = operands.dense["B"], operands.dense["C"]
        result = np.empty(pattern.nnz)
        for start in range(0, pattern.nnz, BLOCK):
            part = slice(start, start + BLOCK)
            first, second = left[rows[part]].astype(np.float64), right[pattern.indices[part]].astype(np.float64)
            result[part] = (first * second).sum(axis=1)
        return result * operands.matrix.values

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count a multiplication and an addition per nonzero and column, one more per nonzero; operands moved once."""
        moved = 12 * pattern.nnz + 8 * (pattern.rows + 1) + 4 * width * (pattern.cols + pattern.rows)
        return Work(flops=(2 * width + 1) * pattern.nnz, bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each value of D adds up, (1,), for tolerances."""
        return np.array([width])

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products behind each value, (nnz,), for tolerances."""
        largest = np.abs(operands.dense["B"]).max(initial=0) * np.abs(operands.dense["C"]).max(initial=0)
        return np.abs(operands.matrix.values) * largest
