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
        addends: D = A (B C + F) + G instead: F (cols, width), G (rows, width) dense. Two steps of x -> M x + g.
    """

    name: str = "spmm_spmm"
    dtype: str = "float32"
    addends: bool = False

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw C, and the addends, from [-1, 1).

        Raises:
            ValueError: the matrix is not square.
        """
        check_width(width)
        _check_square(matrix.pattern)
        typed, rng = matrix.astype(self.dtype), np.random.default_rng(seed)
        names = ("C", "F", "G") if self.addends else ("C",)
        dense = {name: drawn((matrix.pattern.cols, width), rng, self.dtype) for name in names}
        return Operands(typed, dense, right=typed)

    def width(self, operands: Operands) -> int:
        """Columns of D."""
        return operands.width

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64."""
        f, g = (operands.dense[name] if self.addends else 0.0 for name in ("F", "G"))
        return multiply(operands.matrix, multiply(operands.right, operands.dense["C"]) + f) + g

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count the flops of both products; every operand moved once, A as two operands, D written once."""
        _check_square(pattern)
        element, addends = np.dtype(self.dtype).itemsize, 2 * self.addends
        sparse = (element + 4) * pattern.nnz + 8 * (pattern.rows + 1)
        return Work(flops=(4 * pattern.nnz + addends * pattern.rows) * width,
                    bytes=2 * sparse + (2 + addends) * element * pattern.rows * width)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each element of D adds up, (rows, 1), for tolerances; an addend is a product too."""
        _check_square(pattern)
        reached = reached_terms(pattern, pattern)
        return reached + pattern.row_lengths()[:, None] + 1 if self.addends else reached

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        peaks = {name: np.abs(array).max(initial=0) for name, array in operands.dense.items()}
        inner = np.abs(operands.right.values).max(initial=0) * peaks["C"]
        return row_peaks(operands.matrix) * max(inner, peaks.get("F", 0)) + peaks.get("G", 0)


def _check_square(pattern: Pattern) -> None:
    if pattern.rows != pattern.cols:
        raise ValueError(f"{pattern.rows} x {pattern.cols} matrix for both A and B: give a square one")
