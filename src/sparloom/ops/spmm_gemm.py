"""Sparse times dense, then that times dense: D(i,k) = sum over l of (sum over j of A(i,j) B(j,l)) * C(l,k)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.chain import check_inner, drawn, multiply, row_peaks
from sparloom.ops.op import Operands, Work
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["SpmmGemm"]


@dataclass(frozen=True)
class SpmmGemm:
    """D = (A B) C: A (rows, cols) sparse, B (cols, inner), C (inner, width), D (rows, width).

    Args:
        inner: columns of B; as many as D has unless given, as in the paper's experiments.
        dtype: of all operands and of D, float32 or float64.
    """

    name: str = "spmm_gemm"
    inner: int | None = None
    dtype: str = "float32"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B and C from [-1, 1)."""
        inner, rng = check_inner(self.inner, width), np.random.default_rng(seed)
        dense = {"B": drawn((matrix.pattern.cols, inner), rng, self.dtype), "C": drawn((inner, width), rng, self.dtype)}
        return Operands(matrix.astype(self.dtype), dense)

    def width(self, operands: Operands) -> int:
        """Columns of D."""
        return operands.dense["C"].shape[1]

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64, without a BLAS."""
        return np.einsum("il,lk->ik", multiply(operands.matrix, operands.dense["B"]), operands.dense["C"],
                         dtype=np.float64)

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count the flops of both products; every operand moved once, D written once."""
        inner, element = check_inner(self.inner, width), np.dtype(self.dtype).itemsize
        dense = pattern.cols * inner + inner * width + pattern.rows * width
        moved = (element + 4) * pattern.nnz + 8 * (pattern.rows + 1) + element * dense
        return Work(flops=2 * inner * (pattern.nnz + pattern.rows * width), bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products of three factors that each element of D adds up, (rows, 1), for tolerances."""
        return pattern.row_lengths()[:, None] * check_inner(self.inner, width)

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        largest = [np.abs(operands.dense[name]).max(initial=0) for name in ("B", "C")]
        return row_peaks(operands.matrix) * largest[0] * largest[1]
