"""Pairs of products that tile fusion joins: GeMM-SpMM, SpMM-GeMM and SpMM-SpMM."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sparloom.ops.op import Operands, Work, check_width, row_peaks, uniform
from sparloom.sparse import Pattern, SparseMatrix

BLOCK = 8192  # nonzeros at once: bounds the memory of the oracles


@dataclass(frozen=True)
class _SparseAndTwoDense(ABC):
    """Base of the pairs with one sparse matrix: A (rows, cols) sparse, B (cols, inner), C (inner, width).

    Args:
        inner: columns of B; default: as many as D has, as in the paper's experiments.
        dtype: of all operands and of D, float32 or float64.
    """

    name: str
    inner: int | None = None
    dtype: str = "float32"

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B and C from [-1, 1)."""
        inner, rng = self._inner(width), np.random.default_rng(seed)
        dense = {"B": _draw((matrix.pattern.cols, inner), rng, self.dtype), "C": _draw((inner, width), rng, self.dtype)}
        return Operands(matrix.astype(self.dtype), dense)

    def width(self, operands: Operands) -> int:
        """Columns of D."""
        return operands.dense["C"].shape[1]

    @abstractmethod
    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64, without a BLAS."""

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count the flops of both products as unfused code does them; operands moved once, D written once."""
        inner, element = self._inner(width), np.dtype(self.dtype).itemsize
        dense = pattern.cols * inner + inner * width + pattern.rows * width
        moved = (element + 4) * pattern.nnz + 8 * (pattern.rows + 1) + element * dense
        return Work(flops=self._flops(pattern, inner, width), bytes=moved)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products of three factors that each element of D adds up, (rows, 1), for tolerances."""
        return pattern.row_lengths()[:, None] * self._inner(width)

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        largest = [np.abs(operands.dense[name]).max(initial=0) for name in ("B", "C")]
        return row_peaks(operands.matrix) * largest[0] * largest[1]

    @abstractmethod
    def _flops(self, pattern: Pattern, inner: int, width: int) -> int: ...

    def _inner(self, width: int) -> int:
        check_width(width)
        if self.inner is not None and self.inner < 1:
            raise ValueError(f"inner {self.inner} must be at least 1: B needs columns")
        return width if self.inner is None else self.inner


@dataclass(frozen=True)
class GemmSpmm(_SparseAndTwoDense):
    """D = A (B C), D(i,k) = sum over j of A(i,j) * sum over l of B(j,l) C(l,k).

    A (rows, cols) sparse, B (cols, inner), C (inner, width), D (rows, width).

    Args:
        inner: columns of B; default: as many as D has, as in the paper's experiments.
        dtype: of all operands and of D, float32 or float64.
        c_transposed: C is given as its transpose, (width, inner).
    """

    name: str = "gemm_spmm"
    c_transposed: bool = False

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands:
        """Draw B and C from [-1, 1)."""
        drawn = super().operands(matrix, width, seed)
        if not self.c_transposed:
            return drawn
        return Operands(drawn.matrix, {**drawn.dense, "C": np.ascontiguousarray(drawn.dense["C"].T)})

    def width(self, operands: Operands) -> int:
        """Columns of D."""
        return operands.dense["C"].shape[0 if self.c_transposed else 1]

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64, without a BLAS."""
        b, c = operands.dense["B"], operands.dense["C"]
        return _multiply(operands.matrix, np.einsum("jl,kl->jk" if self.c_transposed else "jl,lk->jk", b, c,
                                                    dtype=np.float64))

    def _flops(self, pattern: Pattern, inner: int, width: int) -> int:
        return 2 * width * (pattern.cols * inner + pattern.nnz)


@dataclass(frozen=True)
class SpmmGemm(_SparseAndTwoDense):
    """D = (A B) C, D(i,k) = sum over l of (sum over j of A(i,j) B(j,l)) * C(l,k).

    A (rows, cols) sparse, B (cols, inner), C (inner, width), D (rows, width).

    Args:
        inner: columns of B; default: as many as D has, as in the paper's experiments.
        dtype: of all operands and of D, float32 or float64.
    """

    name: str = "spmm_gemm"

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64, without a BLAS."""
        return np.einsum("il,lk->ik", _multiply(operands.matrix, operands.dense["B"]), operands.dense["C"],
                         dtype=np.float64)

    def _flops(self, pattern: Pattern, inner: int, width: int) -> int:
        return 2 * inner * (pattern.nnz + pattern.rows * width)


@dataclass(frozen=True)
class SpmmSpmm:
    """D = A (B C), D(i,k) = sum over j of A(i,j) * sum over l of B(j,l) C(l,k).

    A (rows, cols) and B (cols, right cols) sparse, C (right cols, width), D (rows, width). `operands`, `work` and
    `terms` use A as B too, as in two steps of an iterative method and in the paper's experiments; A is square there.

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
        dense = {name: _draw((matrix.pattern.cols, width), rng, self.dtype) for name in names}
        return Operands(typed, dense, right=typed)

    def width(self, operands: Operands) -> int:
        """Columns of D."""
        return operands.width

    def oracle(self, operands: Operands) -> Float64[np.ndarray, "rows width"]:
        """Multiply in float64."""
        f, g = (operands.dense[name] if self.addends else 0.0 for name in ("F", "G"))
        return _multiply(operands.matrix, _multiply(operands.right, operands.dense["C"]) + f) + g

    def work(self, pattern: Pattern, width: int) -> Work:
        """Count the flops of both products; every operand moved once, A as two operands, D written once."""
        _check_square(pattern)
        element, addends = np.dtype(self.dtype).itemsize, 2 * self.addends
        sparse = (element + 4) * pattern.nnz + 8 * (pattern.rows + 1)
        return Work(flops=(4 * pattern.nnz + addends * pattern.rows) * width,
                    bytes=2 * sparse + (2 + addends) * element * pattern.rows * width)

    def terms(self, pattern: Pattern, width: int) -> np.ndarray:
        """Count the products that each element of D adds up, (rows, 1), for tolerances; an addend counts as one."""
        _check_square(pattern)
        lengths = np.concatenate([[0], np.cumsum(pattern.row_lengths()[pattern.indices])])
        products = (lengths[pattern.indptr[1:]] - lengths[pattern.indptr[:-1]])[:, None]
        return products + pattern.row_lengths()[:, None] + 1 if self.addends else products

    def scale(self, operands: Operands) -> np.ndarray:
        """Bound the magnitude of the products in each row, (rows, 1), for tolerances."""
        peaks = {name: np.abs(array).max(initial=0) for name, array in operands.dense.items()}
        inner = np.abs(operands.right.values).max(initial=0) * peaks["C"]
        return row_peaks(operands.matrix) * max(inner, peaks.get("F", 0)) + peaks.get("G", 0)


def _draw(shape: tuple[int, int], rng: np.random.Generator, dtype: str) -> np.ndarray:
    """Draw a dense operand from [-1, 1) with the digits of float32."""
    return uniform(shape, rng).astype(dtype, copy=False)


def _multiply(matrix: SparseMatrix, dense: np.ndarray) -> np.ndarray:
    """Multiply a sparse (rows, cols) by a dense matrix (cols, width) in float64: (rows, width)."""
    pattern, values = matrix.pattern, matrix.values.astype(np.float64)
    rows, result = pattern.row_ids(), np.zeros((pattern.rows, dense.shape[1]))
    for start in range(0, pattern.nnz, BLOCK):
        part = slice(start, start + BLOCK)
        products = values[part, None] * dense[pattern.indices[part]].astype(np.float64)
        np.add.at(result, rows[part], products)
    return result


def _check_square(pattern: Pattern) -> None:
    if pattern.rows != pattern.cols:
        raise ValueError(f"{pattern.rows} x {pattern.cols} matrix for both A and B: give a square one")
