"""Attention on the pattern of a sparse matrix: each row attends to the columns where it has nonzeros."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Operands, Work, check_width, uniform
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["CsrAttention"]


@dataclass(frozen=True)
class CsrAttention:
    """D(i,h) = sum over j of softmax over j of (Q(i,h) . K(j,h) / sqrt(d)) V(j,h), j where A(i,j) is stored.

    A (rows, cols) sparse, its values are not read; Q (rows, heads, d), K and V (cols, heads, d), D (rows, heads, d).
    Rows without nonzeros give 0. `width` is heads * d.

    Args:
        heads: of the operands that are drawn.
    """

    heads: int = 1
    name: str = "attention"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw Q, K and V from [-1, 1).

        Raises:
            ValueError: width is below 1 or no multiple of the heads.
        """
        check_width(width)
        if width % self.heads:
            raise ValueError(f"width {width} is no multiple of {self.heads} heads: take {self.heads} times the width "
                             "of one")
        rng, each = np.random.default_rng(seed), (self.heads, width // self.heads)
        rows, cols = matrix.pattern.shape
        return Operands(matrix.astype(np.float32), {name: uniform((count, width), rng).reshape(count, *each)
                                 for name, count in (("Q", rows), ("K", cols), ("V", cols))})

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows heads d"]:
        """Attend row by row in float64."""
        pattern = operands.matrix.pattern
        queries, keys, values = (operands.dense[name].astype(np.float64) for name in ("Q", "K", "V"))
        result = np.zeros((*queries.shape[:2], values.shape[2]))
        for row in range(pattern.rows):
            columns = pattern.indices[pattern.indptr[row] : pattern.indptr[row + 1]]
            if columns.size:
                scores = np.einsum("hd,jhd->jh", queries[row], keys[columns]) * queries.shape[2] ** -0.5
                weights = np.exp(scores - scores.max(axis=0))
                result[row] = np.einsum("jh,jhd->hd", weights / weights.sum(axis=0), values[columns])
        return result

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count the products of queries, keys, weights and values; every operand moved once, D written once."""
        moved = 4 * pattern.nnz + 8 * (pattern.rows + 1) + 8 * width * (pattern.cols + pattern.rows)
        return Work(flops=4 * pattern.nnz * width, bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count what each element of D adds up, with the products behind a score: (rows, 1, 1), for tolerances."""
        return (pattern.row_lengths() + width)[:, None, None]

    def scale(self, operands: Operands) -> float:
        """Bound the products of weights and values, and what an error of a score does to them, for tolerances."""
        largest = {name: float(np.abs(array).max(initial=0)) for name, array in operands.dense.items()}
        each = operands.dense["Q"].shape[2]
        return largest["V"] * max(1.0, largest["Q"] * largest["K"] * each**-0.5)
