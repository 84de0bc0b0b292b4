"""Dense times dense, then sparse times that: D(i,k) = sum over j of A(i,j) * sum over l of B(j,l) C(l,k)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.chain import check_inner, drawn, multiply, row_peaks
from sparloom.ops.op import Operands, Work
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["GemmSpmm"]


@dataclass(frozen=True)
class GemmSpmm:
    """D = A (B C): A (rows, cols) sparse, B (cols, inner), C (inner, width), D (rows, width).

    Args:
        inner: columns of B; as many as D has unless given, as in the paper's experiments.
        dtype: of all operands and of D, float32 or float64.
        c_transposed: C is given as its transpose, (width, inner).
    """

    name: str = "gemm_spmm"
    inner: int | None = None
    dtype: str = "float32"
    c_transposed: bool = False

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B and C from [-1, 1)."""
        inner, rng = check_inner(self.inner, width), np.random.default_rng(seed)
        b, c = drawn((matrix.pattern.cols, inner), rng, self.dtype), drawn((inner, width), rng, self.dtype)
        dense = {"B": b, "C": np.ascontiguousarray(c.T) if self.c_transposed else c}
        return Operands(matrix.astype(self.dtype), dense)

    def width(self, operands: Operands) -> int:
        """Columns of D."""
        return operands.dense["C"].shape[0 if self.c_transposed else 1]

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64, without a BLAS."""
        b, c = operands.dense["B"], operands.dense["C"]
        return multiply(operands.matrix, np.einsum("jl,kl->jk" if self.c_transposed else "jl,lk->jk", b, c,
                                                   dtype=np.float64))

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count the flops of both products, as the unfused code does them; every operand moved once, D written once."""
        inner, element = check_inner(self.inner, width), np.dtype(self.dtype).itemsize
        dense = pattern.cols * inner + inner * width + pattern.rows * width
        moved = (element + 4) * pattern.nnz + 8 * (pattern.rows + 1) + element * dense
        return Work(flops=2 * width * (pattern.cols * inner + pattern.nnz), bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products of three factors that each element of D adds up, (rows, 1), for tolerances."""
        return pattern.row_lengths()[:, None] * check_inner(self.inner, width)

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        largest = [np.abs(operands.dense[name]).max(initial=0) for name in ("B", "C")]
        return row_peaks(operands.matrix) * largest[0] * largest[1]
