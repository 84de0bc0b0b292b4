"""The mean of the products in place of their sum: D(i,k) = sum over j of A(i,j) B(j,k) / nonzeros of row i."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Operands, Work
from sparloom.ops.spmm import SpMM
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["SpmmMean"]


@dataclass(frozen=True)
class SpmmMean:
    """A (rows, cols) sparse, B (cols, width), D (rows, width); rows without nonzeros give 0."""

    name: str = "spmm_mean"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B from [-1, 1)."""
        return SpMM().operands(matrix, width, seed)

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Add up row by row in float64, and divide."""
        return SpMM().oracle(operands) / np.maximum(operands.matrix.pattern.row_lengths(), 1)[:, None]

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count what the sum takes."""
        return SpMM().work(pattern, width)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each element of D adds up, (rows, 1), for tolerances."""
        return SpMM().terms(pattern, width)

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the share that a product has of its element, (rows, 1), for tolerances."""
        return SpMM().scale(operands) / np.maximum(operands.matrix.pattern.row_lengths(), 1)[:, None]
