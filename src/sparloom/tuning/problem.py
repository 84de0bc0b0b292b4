"""A product of three matrices as a decision sees it: patterns and extents, but no values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sparloom.errors import Unsupported
from sparloom.fusion import FusedLoops, Pair, Reads, gemm_spmm_loops, spmm_gemm_loops, spmm_spmm_loops
from sparloom.ops import Operands
from sparloom.sparse import Pattern
from sparloom.tuning.orders import make_order
from sparloom.tuning.sketch import Sketch

__all__ = ["Problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """What a choice may depend on, apart from the machine. Orders and what follows from them are made once.

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
    _orders: dict[str, np.ndarray | None] = field(default_factory=dict, init=False, repr=False)
    _loops: dict[str, FusedLoops] = field(default_factory=dict, init=False, repr=False)
    _sketches: dict[str, Sketch] = field(default_factory=dict, init=False, repr=False)

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

    @property
    def row_bytes(self) -> int:
        """Of a row of D1."""
        return self.element_bytes * (self.inner if self.op.name == "spmm_gemm" else self.width)

    @cached_property
    def graph(self) -> Pattern:
        """Row j holds the iterations of loop one whose results iteration j of loop two reads."""
        return self.pattern if self.op.name != "spmm_gemm" else Pattern.identity(self.pattern.rows)

    @property
    def fusible(self) -> bool:
        """Whether both loops have as many iterations, so that the inspector takes them."""
        return self.graph.rows == self.graph.cols

    def order(self, name: str) -> np.ndarray | None:
        """Give an order of the iterations, (rows,) int32: iteration -> row; None for the natural one."""
        if name not in self._orders:
            self._orders[name] = make_order(name, self.graph)
        return self._orders[name]

    def keep_order(self, name: str, order: np.ndarray) -> None:
        """Take an order that was made before."""
        self._orders[name] = order

    def loops(self, order: str = "natural") -> FusedLoops:
        """Describe both loops to the inspector.

        Raises:
            Unsupported: they differ in length.
        """
        if not self.fusible:
            rows, cols = self.graph.shape
            raise Unsupported(f"loops of {cols} and {rows} iterations: only loops of one length are fused; give "
                              f"fuse=\"never\" or \"auto\"")
        if order not in self._loops:
            self._loops[order] = self._described(self.order(order))
        return self._loops[order]

    def sketch(self, order: str = "natural") -> Sketch:
        """Describe both loops to an estimate."""
        if order not in self._sketches:
            self._sketches[order] = Sketch(self.loops(order))
        return self._sketches[order]

    def _described(self, order: np.ndarray | None) -> FusedLoops:
        columns = None if order is None else _inverse(order)[self.pattern.indices]
        matrix = _reads(self.pattern, order, columns)
        sizes: Mapping[str, int] = {"width": self.width, "element_bytes": self.element_bytes}
        match self.op.name:
            case "gemm_spmm":
                return gemm_spmm_loops(matrix, inner=self.inner, **sizes)
            case "spmm_gemm":
                return spmm_gemm_loops(matrix, inner=self.inner, **sizes)
        return spmm_spmm_loops(matrix, _reads(self.right, order, None), **sizes)


def _reads(pattern: Pattern, order: np.ndarray | None, columns: np.ndarray | None) -> Reads:
    """Take the rows of a pattern in an order, with other names of the columns if there are any."""
    if order is None:
        return Reads.of(pattern)
    source, indptr = pattern.nonzeros_of(order), np.concatenate([[0], np.cumsum(pattern.row_lengths()[order])])
    named = pattern.indices if columns is None else columns
    return Reads(indptr, named[source], pattern.cols, rising=columns is None)


def _inverse(order: np.ndarray) -> np.ndarray:
    number = np.empty_like(order)
    number[order] = np.arange(order.size, dtype=order.dtype)
    return number
