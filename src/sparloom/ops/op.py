"""The interface of an operation: operands, an obviously right result, and the work it takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from sparloom.sparse import Pattern, SparseMatrix

OF_ROWS = {"sddmm": ("B",), "attention": ("Q",)}  # operation -> dense operands that have a row for each row of A


@dataclass(frozen=True)
class Operands:
    """One sparse matrix, or two, and the dense arrays of an operation.

    Args:
        matrix: the sparse operand A (rows, cols).
        dense: name -> array of the type of A's values, row-major; which names exist depends on the operation.
        right: the sparse operand B of SpMM-SpMM.
    """

    matrix: SparseMatrix
    dense: Mapping[str, np.ndarray]
    right: SparseMatrix | None = None

    @classmethod
    def unfilled(cls, matrix: SparseMatrix, width: int) -> "Operands":
        """Make operands without numbers, for simulators that read only the pattern and the width."""
        return cls(matrix, {"B": np.broadcast_to(np.float32(0), (1, width))})

    @property
    def width(self) -> int:
        """Columns of the dense operands, those of all heads together."""
        return math.prod(next(iter(self.dense.values())).shape[1:])

    @property
    def value_bytes(self) -> int:
        """Bytes of a number of the dense operands."""
        return next(iter(self.dense.values())).dtype.itemsize

    @staticmethod
    def of_rows(op: str) -> tuple[str, ...]:
        """Name the dense operands with a row for each row of A; the others have a row for each column of A."""
        return OF_ROWS.get(op, ())

    def astype(self, dtype: DTypeLike) -> "Operands":
        """Convert the numbers of the operands with one sparse matrix to float32, float64 or float16."""
        return Operands(self.matrix.astype(dtype), {
            name: array.astype(dtype, copy=False) for name, array in self.dense.items()})

    def take_rows(self, rows: np.ndarray, op: str) -> "Operands":
        """Keep some rows of A with all their columns, and the matching rows of dense operands.

        Args:
            op: name of the operation, which decides the dense operands that have rows of A.
        """
        pattern = self.matrix.pattern
        nonzeros, indptr = pattern.nonzeros_of(rows), np.concatenate([[0], np.cumsum(pattern.row_lengths()[rows])])
        part = Pattern((rows.size, pattern.cols), indptr, pattern.indices[nonzeros])
        return Operands(SparseMatrix(part, self.matrix.values[nonzeros], self.matrix.dtype), {
            name: array[rows] if name in OF_ROWS.get(op, ()) else array for name, array in self.dense.items()})

    def used_columns(self, op: str) -> "Operands":
        """Keep the columns of A that have nonzeros, and the matching rows of dense operands.

        Args:
            op: as in `take_rows`.
        """
        pattern = self.matrix.pattern
        used, columns = np.unique(pattern.indices, return_inverse=True)
        part = Pattern((pattern.rows, used.size), pattern.indptr, columns)
        return Operands(SparseMatrix(part, self.matrix.values, self.matrix.dtype), {
            name: array if name in OF_ROWS.get(op, ()) else array[used] for name, array in self.dense.items()})


@dataclass(frozen=True)
class Work:
    """Floating-point operations, and bytes that must cross the memory border at least once."""

    flops: int
    bytes: int


class Op(Protocol):
    """An operation; its name is the key of sample tables and of conf/options."""

    name: str

    def operands(self, matrix: SparseMatrix, width: int, seed: int) -> Operands: ...

    def oracle(self, operands: Operands) -> np.ndarray: ...

    def work(self, pattern: Pattern, width: int) -> Work: ...

    def terms(self, pattern: Pattern, width: int) -> np.ndarray: ...

    def scale(self, operands: Operands) -> np.ndarray: ...


def uniform(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw a dense operand from [-1, 1), float32, row-major."""
    return rng.random(shape, dtype=np.float32) * np.float32(2) - np.float32(1)


def check_width(width: int) -> None:
    """Raise ValueError for dense operands without columns."""
    if width < 1:
        raise ValueError(f"width {width} must be at least 1: the dense operands need columns")


def row_peaks(matrix: SparseMatrix) -> np.ndarray:
    """Find the largest magnitude in each row, 0 in empty ones: (rows, 1)."""
    largest = np.zeros(matrix.pattern.rows)
    np.maximum.at(largest, matrix.pattern.row_ids(), np.abs(matrix.values))
    return largest[:, None]
