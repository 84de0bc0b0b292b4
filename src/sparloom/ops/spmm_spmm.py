"""Two sparse matrices times a dense one: D(i,k) = sum over j of A(i,j) * sum over l of B(j,l) C(l,k)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.chain import drawn, multiply, reached_terms, row_peaks
from sparloom.ops.op import Operands, Work, check_width
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["SpmmSpmm"]


@dataclass(frozen=True)
class SpmmSpmm:
    """D = A (B C): A (rows, cols) and B (cols, right cols) sparse, C (right cols, width), D (rows, width).

    `operands`, `work` and `terms` take A for B too, as two steps of an iterative method do and the paper's experiments;
    so A is square there.

    Args:
        dtype: of all operands and of D, float32 or float64.
    """

    name: str = "spmm_spmm"
    dtype: str = "float32"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw C from [-1, 1).

        Raises:
            ValueError: the matrix is not square.
        """
        check_width(width)
        _check_square(matrix.pattern)
        typed, rng = matrix.astype(self.dtype), np.random.default_rng(seed)
        return Operands(typed, {"C": drawn((matrix.pattern.cols, width), rng, self.dtype)}, right=typed)

    def width(self, operands: Operands) -> int:
        """Columns of D."""
        return operands.width

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64."""
        return multiply(operands.matrix, multiply(operands.right, operands.dense["C"]))

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count the flops of both products; every operand moved once, A as two operands, D written once."""
        _check_square(pattern)
        element = np.dtype(self.dtype).itemsize
        sparse = (element + 4) * pattern.nnz + 8 * (pattern.rows + 1)
        return Work(flops=4 * pattern.nnz * width, bytes=2 * sparse + 2 * element * pattern.rows * width)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products of three factors that each element of D adds up, (rows, 1), for tolerances."""
        _check_square(pattern)
        return reached_terms(pattern, pattern)

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        largest = np.abs(operands.right.values).max(initial=0) * np.abs(operands.dense["C"]).max(initial=0)
        return row_peaks(operands.matrix) * largest


def _check_square(pattern: Pattern) -> None:
    if pattern.rows != pattern.cols:
        raise ValueError(f"{pattern.rows} x {pattern.cols} matrix for both A and B: give a square one")
