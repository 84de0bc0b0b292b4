"""The largest product in place of their sum: D(i,k) = max over j of A(i,j) B(j,k)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Operands, Work
from sparloom.ops.spmm import SpMM
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["SpmmMax"]


@dataclass(frozen=True)
class SpmmMax:
    """A (rows, cols) sparse, B (cols, width), D (rows, width); j where A(i,j) is stored.

    Rows without nonzeros give 0. An element is NaN if one of its products is.
    """

    name: str = "spmm_max"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B from [-1, 1)."""
        return SpMM().operands(matrix, width, seed)

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Compare row by row in float64."""
        pattern, values = operands.matrix.pattern, operands.matrix.values.astype(np.float64)
        result = np.zeros((pattern.rows, operands.width))
        for row in np.flatnonzero(pattern.row_lengths()):
            nonzeros = slice(pattern.indptr[row], pattern.indptr[row + 1])
            result[row] = (values[nonzeros, None] * operands.dense["B"][pattern.indices[nonzeros]]).max(axis=0)
        return result

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count a multiplication and a comparison per nonzero and column; every operand moved once, D written once."""
        return SpMM().work(pattern, width)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each element of D adds up: one, (1,), for tolerances."""
        return np.ones(1, np.int64)

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        return SpMM().scale(operands)
