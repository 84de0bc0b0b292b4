"""Operations on one sparse matrix: SpMM, its mean and its maximum, SDDMM, attention."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Operands, Work, check_width, row_peaks, uniform
from sparloom.sparse import Pattern, SparseMatrix

BLOCK = 8192  # nonzeros at once: bounds the memory of the oracle


class _SparseTimesDense(ABC):
    """Base of SpMM and its other reductions: A (rows, cols) sparse, B (cols, width), D (rows, width)."""

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B from [-1, 1)."""
        check_width(width)
        rng = np.random.default_rng(seed)
        return Operands(matrix.astype(np.float32), {"B": uniform((matrix.pattern.cols, width), rng)})

    @abstractmethod
    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Compute D in float64."""

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count two flops per nonzero and column; every operand moved once, D written once."""
        moved = 8 * pattern.nnz + 8 * (pattern.rows + 1) + 4 * width * (pattern.cols + pattern.rows)
        return Work(flops=2 * pattern.nnz * width, bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each element of D adds up, (rows, 1), for tolerances."""
        return pattern.row_lengths()[:, None]

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        return row_peaks(operands.matrix) * np.abs(operands.dense["B"]).max(initial=0)


@dataclass(frozen=True)
class SpMM(_SparseTimesDense):
    """D(i,k) = sum over j of A(i,j) B(j,k): A (rows, cols) sparse, B (cols, width), D (rows, width)."""

    name: str = "spmm"

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Add up row by row in float64."""
        pattern, values = operands.matrix.pattern, operands.matrix.values.astype(np.float64)
        dense = operands.dense["B"]
        result = np.zeros((pattern.rows, operands.width))
        for row in range(pattern.rows):
            nonzeros = slice(pattern.indptr[row], pattern.indptr[row + 1])
            result[row] = values[nonzeros] @ dense[pattern.indices[nonzeros]].astype(np.float64)
        return result


@dataclass(frozen=True)
class SpmmMean(_SparseTimesDense):
    """D(i,k) = sum over j of A(i,j) B(j,k), divided by the nonzeros of row i; rows without nonzeros give 0."""

    name: str = "spmm_mean"

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Add up row by row in float64, and divide."""
        return SpMM().oracle(operands) / _divisors(operands)

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the share that a product has in its element, (rows, 1), for tolerances."""
        return super().scale(operands) / _divisors(operands)


@dataclass(frozen=True)
class SpmmMax(_SparseTimesDense):
    """D(i,k) = max over j of A(i,j) B(j,k), where A(i,j) is stored.

    Rows without nonzeros give 0. An element is NaN if one of its products is.
    """

    name: str = "spmm_max"

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Compare row by row in float64."""
        pattern, values = operands.matrix.pattern, operands.matrix.values.astype(np.float64)
        result = np.zeros((pattern.rows, operands.width))
        for row in np.flatnonzero(pattern.row_lengths()):
            nonzeros = slice(pattern.indptr[row], pattern.indptr[row + 1])
            result[row] = (values[nonzeros, None] * operands.dense["B"][pattern.indices[nonzeros]]).max(axis=0)
        return result

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products behind each element of D: one, (1,), for tolerances."""
        return np.ones(1, np.int64)


@dataclass(frozen=True)
class SDDMM:
    """D(i,j) = A(i,j) * sum over k of B(i,k) C(j,k), on the pattern of A.

    A (rows, cols) sparse, B (rows, width), C (cols, width); the result holds the values of D in CSR order.
    """

    name: str = "sddmm"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B and C from [-1, 1)."""
        check_width(width)
        rng = np.random.default_rng(seed)
        pattern = matrix.pattern
        dense = {"B": uniform((pattern.rows, width), rng), "C": uniform((pattern.cols, width), rng)}
        return Operands(matrix.astype(np.float32), dense)

    def oracle(self, operands: Operands) -> Float64[np.ndarray, " nnz"]:
        """Compute each dot product in float64."""
        pattern, rows = operands.matrix.pattern, operands.matrix.pattern.row_ids()
        left, right = operands.dense["B"], operands.dense["C"]
        result = np.empty(pattern.nnz)
        for start in range(0, pattern.nnz, BLOCK):
            part = slice(start, start + BLOCK)
            first, second = left[rows[part]].astype(np.float64), right[pattern.indices[part]].astype(np.float64)
            result[part] = (first * second).sum(axis=1)
        return result * operands.matrix.values

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count two flops per nonzero and column, one more per nonzero; operands moved once."""
        moved = 12 * pattern.nnz + 8 * (pattern.rows + 1) + 4 * width * (pattern.cols + pattern.rows)
        return Work(flops=(2 * width + 1) * pattern.nnz, bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each value of D adds up, (1,), for tolerances."""
        return np.array([width])

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products behind each value, (nnz,), for tolerances."""
        largest = np.abs(operands.dense["B"]).max(initial=0) * np.abs(operands.dense["C"]).max(initial=0)
        return np.abs(operands.matrix.values) * largest


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
        """Count the terms behind each element of D, those of its scores included: (rows, 1, 1), for tolerances."""
        return (pattern.row_lengths() + width)[:, None, None]

    def scale(self, operands: Operands) -> float:
        """Bound the products of weights and values, and the effect of an error of a score on them, for tolerances."""
        largest = {name: float(np.abs(array).max(initial=0)) for name, array in operands.dense.items()}
        each = operands.dense["Q"].shape[2]
        return largest["V"] * max(1.0, largest["Q"] * largest["K"] * each**-0.5)


def _divisors(operands: Operands) -> np.ndarray:
    return np.maximum(operands.matrix.pattern.row_lengths(), 1)[:, None]
