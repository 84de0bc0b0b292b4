"""The rows of a sparse operand as kernels process them: their order, and how threads share them.

A `Traversal` is a pattern with its rows in processing order; `Pieces` cut it for the threads; `SparseRows` fills the
struct Rows of kernels/cpu/arguments.hpp with both.
"""

import ctypes
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sparloom.jit import address, kernel_library
from sparloom.ops import Operands
from sparloom.sparse import Pattern

MAX_TOGETHER = 4  # rows with equal columns that a kernel processes at once
ROW_WORK = 4  # starting a row costs as much as so many nonzeros
PIECES_PER_THREAD = 8  # of which others may take some; a single thread has one
DYNAMIC_PIECES = 16  # the same with balance "dynamic"
SLACK = 16  # a cut may move by 1/SLACK of a piece to fall between two rows

GRAIN = 3 << 17
"""Elements of dense rows that one thread reads and writes before a second one is worth waking: 14 us on an AMD EPYC."""


@dataclass(frozen=True)
class Pieces:
    """Consecutive parts of a traversal.

    Piece p is the nonzeros nonzeros[p] to nonzeros[p + 1] of the rows rows[p] to rows[p + 1], all in the order of the
    traversal. A piece that begins inside a row is cut: the piece in which that row begins owns its result.

    Args:
        rows: (pieces + 1,) int64.
        nonzeros: (pieces + 1,) int64.
        cut: whether any piece is cut.
        dynamic: threads take pieces as they become free; otherwise each has an equal part of them first.
    """

    rows: np.ndarray
    nonzeros: np.ndarray
    cut: bool
    dynamic: bool


@dataclass(frozen=True)
class Traversal:
    """A pattern with its rows in processing order.

    Args:
        indptr: (rows + 1,) int64, along `indices`.
        indices: (nnz,) int32, columns.
        source: (rows,) int64, where the nonzeros of each row begin in the pattern.
        original_row: (rows,) int32, index of each row in the pattern.
    """

    indptr: np.ndarray
    indices: np.ndarray
    source: np.ndarray
    original_row: np.ndarray

    @classmethod
    def natural(cls, pattern: Pattern) -> "Traversal":
        """Take rows as they are stored; shares the pattern's arrays."""
        return cls(pattern.indptr, pattern.indices, pattern.indptr[:-1], np.arange(pattern.rows, dtype=np.int32))

    @classmethod
    def by_column(cls, pattern: Pattern) -> "Traversal":
        """Sort rows by their middle column, empty ones last, so that rows that read the same dense rows meet."""
        traversal = cls(np.empty(pattern.rows + 1, np.int64), np.empty(pattern.nnz, np.int32),
                        np.empty(pattern.rows, np.int64), np.empty(pattern.rows, np.int32))
        counters = np.zeros(pattern.cols + 2, np.int32)
        result = _Traversal(*(address(array, array.dtype.type, written=True) for array in (
            traversal.indptr, traversal.indices, traversal.source, traversal.original_row, counters)))
        kernel_library("traversal").sparloom_by_column(
            ctypes.byref(_Pattern.of(pattern.indptr, pattern.indices)), ctypes.c_int64(pattern.cols),
            ctypes.byref(result))
        return traversal

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.original_row.size

    @cached_property
    def equal(self) -> np.ndarray:
        """Count, for each row, the rows from it on that have its columns, itself included: (rows,) uint8, 1 to 4."""
        count = np.empty(self.rows, dtype=np.uint8)
        rows = _Pattern.of(self.indptr, self.indices)
        kernel_library("traversal").sparloom_equal_rows(
            ctypes.byref(rows), ctypes.c_int64(MAX_TOGETHER),
            ctypes.c_void_p(address(count, np.uint8, written=True)))
        return count

    def pieces(self, balance: str, threads: int) -> Pieces:
        """Cut into pieces, several for each thread, so that others can take those that a late thread has not begun.

        Args:
            balance: "rows", pieces of equally many rows; "nonzeros", pieces of equal work, for which long rows are cut;
                "dynamic", smaller pieces of whole rows, begun in their order.
        """
        count = PIECES_PER_THREAD * threads if threads > 1 else 1
        if balance == "rows" or not self.rows:
            return self._whole_rows(np.linspace(0, self.rows, count + 1).astype(np.int64), dynamic=False)
        work = self.indptr + ROW_WORK * np.arange(self.rows + 1)
        if balance == "dynamic":
            shares = np.linspace(0, work[-1], min(DYNAMIC_PIECES * threads, self.rows) + 1)
            return self._whole_rows(np.unique(np.searchsorted(work, shares)), dynamic=True)
        return self._equal_work(work, count)

    def _whole_rows(self, rows: np.ndarray, *, dynamic: bool) -> Pieces:
        return Pieces(rows, self.indptr[rows], cut=False, dynamic=dynamic)

    def _equal_work(self, work: np.ndarray, count: int) -> Pieces:
        targets = np.linspace(0, work[-1], count + 1)[1:-1]
        slack = work[-1] / count / SLACK
        rows = np.searchsorted(work, targets, side="right") - 1
        past, left = targets - work[rows], work[rows + 1] - targets
        nonzeros = np.minimum(self.indptr[rows] + past.astype(np.int64), self.indptr[rows + 1])
        rows = np.where(left <= slack, rows + 1, rows)
        nonzeros = np.where(np.minimum(past, left) <= slack, self.indptr[rows], nonzeros)
        rows, nonzeros = np.concatenate([[0], rows, [self.rows]]), np.concatenate([[0], nonzeros, self.indptr[-1:]])
        return Pieces(rows, nonzeros, cut=bool((nonzeros > self.indptr[rows]).any()), dynamic=False)


class Rows(ctypes.Structure):
    """The struct Rows of kernels/cpu/arguments.hpp, with its names."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "indptr", "indices", "values", "source", "place", "equal", "piece_rows", "piece_nonzeros")),
        ("nnz", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("pieces", "dynamic", "threads")),
    )


@dataclass(frozen=True)
class BoundRows:
    """A struct Rows that has everything but the values.

    Args:
        kept: owners of the arrays that its addresses point to.
    """

    arguments: Rows
    pieces: Pieces
    kept: tuple[Any, ...]

    @property
    def count(self) -> int:
        """Number of pieces."""
        return self.pieces.rows.size - 1


def useful_threads(operands: Operands, threads: int) -> int:
    """Return 1 for operands with so little work that other threads would start too late to help, else `threads`."""
    pattern = operands.matrix.pattern
    width = sum([math.prod(array.shape[1:]) for array in operands.dense.values()])
    return threads if (pattern.nnz + pattern.rows) * width >= GRAIN else 1


class SparseRows:
    """Binds patterns. Keeps traversals and pieces of the latest pattern, because configurations share them."""

    def __init__(self) -> None:
        self._latest: tuple[Pattern | None, dict[str, Traversal], dict[tuple[str, str, int], Pieces]] = None, {}, {}

    def bind(
        self, pattern: Pattern, *, order: str, balance: str, threads: int, together: bool = False,
    ) -> BoundRows:
        """Fill the struct for one order of the rows and one way of sharing them among threads.

        Args:
            together: whether the kernel reads which rows have equal columns.
        """
        latest = self._latest
        if latest[0] is not pattern:
            latest = self._latest = pattern, {}, {}
        _, traversals, shared = latest
        if order not in traversals:
            traversals[order] = {"natural": Traversal.natural, "column": Traversal.by_column}[order](pattern)
        traversal = traversals[order]
        if (order, balance, threads) not in shared:
            shared[order, balance, threads] = traversal.pieces(balance, threads)
        pieces, equal = shared[order, balance, threads], traversal.equal if together else None
        arguments = Rows(
            indptr=address(traversal.indptr, np.int64), indices=address(traversal.indices, np.int32),
            source=address(traversal.source, np.int64), place=address(traversal.original_row, np.int32),
            equal=None if equal is None else address(equal, np.uint8),
            piece_rows=address(pieces.rows, np.int64), piece_nonzeros=address(pieces.nonzeros, np.int64),
            nnz=pattern.nnz, pieces=pieces.rows.size - 1, dynamic=pieces.dynamic, threads=threads)
        return BoundRows(arguments, pieces, kept=(traversal, pieces, equal))


class _Pattern(ctypes.Structure):
    """The struct Pattern of kernels/cpu/traversal.cpp."""

    _fields_ = (("indptr", ctypes.c_void_p), ("indices", ctypes.c_void_p), ("rows", ctypes.c_int64))

    @classmethod
    def of(cls, indptr: np.ndarray, indices: np.ndarray) -> "_Pattern":
        return cls(address(indptr, np.int64), address(indices, np.int32), indptr.size - 1)


class _Traversal(ctypes.Structure):
    """The struct Traversal of kernels/cpu/traversal.cpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("indptr", "indices", "source", "place", "next"))
