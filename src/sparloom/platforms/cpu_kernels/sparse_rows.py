"""A sparse matrix as the kernels see it: the struct Rows of kernels/cpu/rows.hpp, filled but for the values."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.jit import address
from sparloom.platforms.cpu_kernels.traversal import Pieces, Traversal
from sparloom.sparse import Pattern

__all__ = ["Bound", "Rows", "SparseRows"]


class Rows(ctypes.Structure):
    """The struct of the same name."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "indptr", "indices", "values", "source", "place", "equal", "piece_rows", "piece_nonzeros")),
        ("nnz", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("pieces", "dynamic", "threads")),
    )


@dataclass(frozen=True)
class Bound:
    """A filled struct.

    Args:
        pieces: how many there are.
        cut: whether a piece begins inside a row.
        kept: what its addresses point to.
    """

    arguments: Rows
    pieces: int
    cut: bool
    kept: tuple[Any, ...]


class SparseRows:
    """Binds patterns; traversals of the one seen last, and their pieces, are kept: configurations share them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pattern: Pattern | None = None
        self._traversals: dict[str, Traversal] = {}
        self._pieces: dict[tuple[str, str], Pieces] = {}

    def bind(self, pattern: Pattern, *, order: str, balance: str, together: bool = False) -> Bound:
        """Fill the struct for one order of the rows and one way of sharing them.

        Args:
            together: whether the kernel asks which rows have equal columns.
        """
        walk = self._traversal(pattern, order)
        if (order, balance) not in self._pieces:
            self._pieces[order, balance] = walk.pieces(balance, self.threads)
        pieces = self._pieces[order, balance]
        count = pieces.rows.size - 1
        arguments = Rows(
            indptr=address(walk.indptr, np.int64), indices=address(walk.indices, np.int32),
            source=address(walk.source, np.int64), place=address(walk.place, np.int32),
            equal=address(walk.equal, np.uint8) if together else None, piece_rows=address(pieces.rows, np.int64),
            piece_nonzeros=address(pieces.nonzeros, np.int64), nnz=pattern.nnz, pieces=count, dynamic=pieces.dynamic,
            threads=self.threads)
        return Bound(arguments, count, pieces.cut, kept=(walk, pieces))

    def _traversal(self, pattern: Pattern, order: str) -> Traversal:
        if self._pattern is not pattern:
            self._pattern, self._traversals, self._pieces = pattern, {}, {}
        if order not in self._traversals:
            make = {"natural": Traversal.natural, "column": Traversal.by_column}[order]
            self._traversals[order] = make(pattern)
        return self._traversals[order]
