"""A product of three matrices as a decision sees it: patterns and extents, but no values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparloom.fusion import FusedLoops, Pair, Reads, gemm_spmm_loops, spmm_gemm_loops, spmm_spmm_loops
from sparloom.ops import Operands
from sparloom.sparse import Pattern

__all__ = ["Problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """What a choice may depend on, apart from the machine.

    Args:
        pattern: of A.
        right: pattern of B, None where it is dense.
        inner: columns of B where it is dense, else 0.
        width: columns of D.
        dtype: of all values.
    """

    op: Pair
    pattern: Pattern
    right: Pattern | None
    inner: int
    width: int
    dtype: str

    @classmethod
    def of(cls, op: Pair, operands: Operands) -> Problem:
        """Look at operands."""
        right = None if operands.right is None else operands.right.pattern
        inner = operands.dense["B"].shape[1] if right is None else 0
        return cls(op, operands.matrix.pattern, right, inner, op.width(operands), operands.matrix.dtype.name)

    @property
    def element_bytes(self) -> int:
        """Of one value."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def graph(self) -> Pattern:
        """Row j holds the iterations of loop one whose results iteration j of loop two reads."""
        if self.op.name != "spmm_gemm":
            return self.pattern
        rows = self.pattern.rows
        return Pattern((rows, rows), np.arange(rows + 1), np.arange(rows))

    @property
    def fusible(self) -> bool:
        """Whether both loops have as many iterations, so that the inspector takes them."""
        return self.graph.rows == self.graph.cols

    @property
    def orderable(self) -> bool:
        """Whether an order of iterations can change what is fused."""
        return self.fusible and self.op.name != "spmm_gemm"

    def loops(self, order: np.ndarray | None = None) -> FusedLoops:
        """Describe both loops to the inspector.

        Args:
            order: (rows,) int32, iteration -> row; natural unless given.
        """
        columns = None if order is None else _inverse(order)[self.pattern.indices]
        matrix = _reads(self.pattern, order, columns)
        sizes = {"width": self.width, "element_bytes": self.element_bytes}
        match self.op.name:
            case "gemm_spmm":
                return gemm_spmm_loops(matrix, inner=self.inner, **sizes)
            case "spmm_gemm":
                return spmm_gemm_loops(matrix, inner=self.inner, **sizes)
        return spmm_spmm_loops(matrix, _reads(self.right, order, None), **sizes)


def _reads(pattern: Pattern, order: np.ndarray | None, columns: np.ndarray | None) -> Reads:
    """Take rows of a pattern in an order, with other names of the columns if there are any."""
    if order is None:
        return Reads.of(pattern)
    lengths = pattern.row_lengths()[order]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    source = np.repeat(pattern.indptr[:-1][order] - indptr[:-1], lengths) + np.arange(pattern.nnz)
    named = pattern.indices if columns is None else columns
    return Reads(indptr, np.ascontiguousarray(named[source], np.int32), pattern.cols, rising=columns is None)


def _inverse(order: np.ndarray) -> np.ndarray:
    number = np.empty_like(order)
    number[order] = np.arange(order.size, dtype=order.dtype)
    return number
