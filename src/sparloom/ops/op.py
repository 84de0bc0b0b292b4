"""What an operation is: operands, an obviously right result, and the work it takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Op", "Operands", "Work"]

OF_ROWS = {"sddmm": ("B",), "attention": ("Q",)}  # operation -> dense operands that have a row for each row of A


@dataclass(frozen=True)
class Operands:
    """One sparse matrix and the dense arrays it meets, or two.

    Args:
        matrix: the sparse operand A (rows, cols).
        dense: name -> array of the type of A's values, row-major; the operation says which there are.
        right: the sparse operand B of SpMM-SpMM.
    """

    matrix: SparseMatrix
    dense: Mapping[str, np.ndarray]
    right: SparseMatrix | None = None

    @classmethod
    def unfilled(cls, matrix: SparseMatrix, width: int) -> "Operands":
        """Operands without numbers, for simulators: they read the pattern and the width, and compute nothing."""
        return cls(matrix, {"B": np.broadcast_to(np.float32(0), (1, width))})

    @property
    def width(self) -> int:
        """Columns of the dense operands, those of all heads together."""
        return math.prod(next(iter(self.dense.values())).shape[1:])

    @staticmethod
    def of_rows(op: str) -> tuple[str, ...]:
        """Name the dense operands that have a row for each row of A; others have one for each column."""
        return OF_ROWS.get(op, ())

    def take_rows(self, rows: np.ndarray, op: str) -> "Operands":
        """Keep some rows of A with all their columns, and those rows of dense operands that belong to them.

        Args:
            op: name of the operation, which says what belongs to the rows of A.
        """
        pattern = self.matrix.pattern
        places, indptr = pattern.nonzeros_of(rows), np.concatenate([[0], np.cumsum(pattern.row_lengths()[rows])])
        part = Pattern((rows.size, pattern.cols), indptr, pattern.indices[places])
        return Operands(SparseMatrix(part, self.matrix.values[places], self.matrix.dtype), {
            name: array[rows] if name in OF_ROWS.get(op, ()) else array for name, array in self.dense.items()})


    def used_columns(self, op: str) -> "Operands":
        """Keep the columns in which A has nonzeros, and those rows of dense operands that belong to them.

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
    """An operation; its name is the key of sample tables and of conf/op."""

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
    """Refuse dense operands without columns."""
    if width < 1:
        raise ValueError(f"width {width} must be at least 1: the dense operands need columns")
