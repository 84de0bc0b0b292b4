"""Kernels with one sparse operand: how its rows are ordered and shared among threads, and calls bound to arrays.

A `Traversal` is a pattern with its rows in processing order; `Pieces` cut it for the threads; `SparseRows` fills the
struct Rows of kernels/cpu/rows.hpp with both. A family binds the kernels of one operation to it and to dense operands.
"""

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np

from sparloom.jit import NativeCall, address, aligned, compile_cpp
from sparloom.ops import Op, Operands
from sparloom.platforms.timing import Check, SpotCheck
from sparloom.space import AttentionSpace, Config, GridSpace, SddmmSpace, SpmmMaxSpace, SpmmSpace
from sparloom.sparse import Pattern

__all__ = [
    "GRAIN", "SPARSE_FAMILIES", "Allocate", "AttentionKernels", "BoundRows", "Pieces", "RowBinder", "Rows",
    "SddmmKernels", "SparseCall", "SparseFamily", "SpmmKernels", "SpmmMaxKernels", "Traversal", "kernel_library",
    "useful_threads",
]

MAX_STRIP = 2**31 - 1  # columns of a strip that is as wide as it can be
MAX_ARGMAX = 2**31 - 1  # the argmax is int32
MAX_TOGETHER = 4  # rows with equal columns that a kernel processes at once
ROW_WORK = 4  # starting a row costs as much as so many nonzeros
PIECES_PER_THREAD = 8  # of which others may take some; a single thread has one
DYNAMIC_PIECES = 16  # the same with balance "dynamic"
SLACK = 16  # a cut may move by 1/SLACK of a piece to fall between two rows

GRAIN = 3 << 17
"""Elements of dense rows that one thread reads and writes before a second one is worth waking: 14 us on an AMD EPYC."""

Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
"""Makes an uninitialised array of a shape and a type."""


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
    """The struct Rows of kernels/cpu/rows.hpp, with its names."""

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


class RowBinder(Protocol):
    """Binds patterns, or leaves that to whoever makes the call."""

    def bind(
        self, pattern: Pattern, *, order: str, balance: str, threads: int, together: bool = False,
    ) -> BoundRows:
        """Fill the struct for one order of the rows and one way of sharing them among threads."""


class SparseRows:
    """Binds patterns. Keeps traversals and pieces of the latest pattern, because configurations share them."""

    def __init__(self) -> None:
        self._pattern: Pattern | None = None
        self._traversals: dict[str, Traversal] = {}
        self._pieces: dict[tuple[str, str, int], Pieces] = {}

    def bind(
        self, pattern: Pattern, *, order: str, balance: str, threads: int, together: bool = False,
    ) -> BoundRows:
        """Fill the struct for one order of the rows and one way of sharing them among threads.

        Args:
            together: whether the kernel reads which rows have equal columns.
        """
        traversal = self._traversal(pattern, order)
        if (order, balance, threads) not in self._pieces:
            self._pieces[order, balance, threads] = traversal.pieces(balance, threads)
        pieces = self._pieces[order, balance, threads]
        arguments = Rows(
            indptr=address(traversal.indptr, np.int64), indices=address(traversal.indices, np.int32),
            source=address(traversal.source, np.int64), place=address(traversal.original_row, np.int32),
            equal=address(traversal.equal, np.uint8) if together else None,
            piece_rows=address(pieces.rows, np.int64), piece_nonzeros=address(pieces.nonzeros, np.int64),
            nnz=pattern.nnz, pieces=pieces.rows.size - 1, dynamic=pieces.dynamic, threads=threads)
        return BoundRows(arguments, pieces, kept=(traversal, pieces))

    def _traversal(self, pattern: Pattern, order: str) -> Traversal:
        if self._pattern is not pattern:
            self._pattern, self._traversals, self._pieces = pattern, {}, {}
        if order not in self._traversals:
            make = {"natural": Traversal.natural, "column": Traversal.by_column}[order]
            self._traversals[order] = make(pattern)
        return self._traversals[order]


class _Pattern(ctypes.Structure):
    """The struct Pattern of kernels/cpu/traversal.cpp."""

    _fields_ = (("indptr", ctypes.c_void_p), ("indices", ctypes.c_void_p), ("rows", ctypes.c_int64))

    @classmethod
    def of(cls, indptr: np.ndarray, indices: np.ndarray) -> "_Pattern":
        return cls(address(indptr, np.int64), address(indices, np.int32), indptr.size - 1)


class _Traversal(ctypes.Structure):
    """The struct Traversal of kernels/cpu/traversal.cpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("indptr", "indices", "source", "place", "next"))


class SparseCall(NativeCall):
    """A call whose arguments begin with a struct Rows; it keeps the values of the sparse operand alive."""

    _values: np.ndarray | None = None

    def point(self, values: np.ndarray) -> None:
        """Read other values of the same pattern."""
        if values is not self._values:
            self._values = None  # an exception before the last line must not leave an address of other values
            self.arguments.rows.values = address(values)
            self._values = values

    def release(self) -> None:
        super().release()
        self._values = None


class SparseFamily(ABC):
    """Kernels of one operation with one sparse operand.

    Args:
        threads: of every call.
        width: columns of the dense operands, all heads together, for which `space` is made; kernels take any width.
        allocate: makes arrays for results.
        rows: binds patterns (default: a `SparseRows`).
    """

    make_space: Callable[[int], GridSpace]

    def __init__(
        self, threads: int, width: int, allocate: Allocate = aligned, rows: RowBinder | None = None,
    ) -> None:
        self.threads = threads
        self.width = width
        self._allocate = allocate
        self._rows = SparseRows() if rows is None else rows

    def space(self) -> GridSpace:
        """List the configurations."""
        return self.make_space(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return self._allocate((operands.matrix.pattern.rows, operands.dense["B"].shape[1]), np.float32)

    @abstractmethod
    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> NativeCall:
        """Bind the kernel of a legal configuration."""

    @abstractmethod
    def rebind(self, call: Any, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""

    def check(self, op: Op, operands: Operands, *, seed: int) -> Check:
        """Compare some rows of a result with the oracle, and make sure that all are written."""
        return SpotCheck(op, operands, seed=seed).compare_written

    def _bind_rows(self, operands: Operands, config: Config, *, together: bool = False) -> BoundRows:
        return self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]),
                               threads=useful_threads(operands, self.threads), together=together)


class SpmmKernels(SparseFamily):
    """The family of SpMM."""

    make_space = staticmethod(SpmmSpace)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        together = config["together"] > 1
        rows = self._bind_rows(operands, config, together=together)
        carries = _carries(rows, operands.width)
        arguments = _Spmm(
            rows=rows.arguments, carries=_optional(carries), width=operands.width,
            strip=MAX_STRIP if config["strip"] == "all" else config["strip"], ahead=1024 * int(config["prefetch"]),
            stream=config["stream"], together=together)
        call = SparseCall(kernel_library("spmm").sparloom_spmm, arguments, kept=(rows, carries))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        call.lent = (operands, result)


class SpmmMaxKernels(SparseFamily):
    """The family of the maximum of products."""

    make_space = staticmethod(SpmmMaxSpace)

    def argmax(self, operands: Operands) -> np.ndarray:
        """Allocate the argmax of D, (rows, width) int32."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.int32)

    def bind(
        self, operands: Operands, config: Config, result: np.ndarray, argmax: np.ndarray | None = None,
    ) -> SparseCall:
        """Bind the kernel of a legal configuration.

        Args:
            argmax: gets the index of the nonzero of A behind each element of D: the first one whose product is the
                largest, or NaN; -1 in rows without nonzeros. None: not computed.

        Raises:
            ValueError: the argmax is wanted and A has too many nonzeros to index them in int32.
        """
        nnz = operands.matrix.pattern.nnz
        if argmax is not None and nnz > MAX_ARGMAX:
            raise ValueError(f"A has {nnz} nonzeros, above the {MAX_ARGMAX} that the argmax can index: split A by rows")
        rows = self._bind_rows(operands, config)
        carries = _carries(rows, operands.width)
        carried_argmax = None if argmax is None else _carries(rows, operands.width, np.int32)
        arguments = _SpmmMax(
            rows=rows.arguments, carries=_optional(carries), carried_places=_optional(carried_argmax, np.int32),
            width=operands.width, ahead=1024 * int(config["prefetch"]))
        call = SparseCall(kernel_library("spmm_max").sparloom_spmm_max, arguments, kept=(rows, carries, carried_argmax))
        self.rebind(call, operands, result, argmax)
        return call

    def rebind(
        self, call: SparseCall, operands: Operands, result: np.ndarray, argmax: np.ndarray | None = None,
    ) -> None:
        """Point a call to other arrays of the same shapes; give an argmax only if it was bound with one."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        arguments.places = None if argmax is None else address(argmax, np.int32, written=True)
        call.lent = (operands, result, argmax)


class SddmmKernels(SparseFamily):
    """The family of SDDMM."""

    make_space = staticmethod(SddmmSpace)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate the values of D (nnz,)."""
        return self._allocate((operands.matrix.pattern.nnz,), np.float32)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        rows = self._bind_rows(operands, config)
        arguments = _Sddmm(rows=rows.arguments, width=operands.width, ahead=2048 * int(config["prefetch"]),
                           group=config["group"])
        call = SparseCall(kernel_library("sddmm").sparloom_sddmm, arguments, kept=(rows,))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.left, arguments.right = address(operands.dense["B"]), address(operands.dense["C"])
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


class AttentionKernels(SparseFamily):
    """The family of attention on a sparse pattern."""

    make_space = staticmethod(AttentionSpace)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, heads, columns of a head of V)."""
        return self._allocate((operands.matrix.pattern.rows, *operands.dense["V"].shape[1:]), np.float32)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> NativeCall:
        """Bind the kernel of a legal configuration; scores are divided by the square root of the width of a head."""
        rows = self._bind_rows(operands, config)
        heads, width = operands.dense["K"].shape[1:]
        value_width = operands.dense["V"].shape[2]
        parts = _carries(rows, 2 * heads * (value_width + 2))
        arguments = _Attention(
            rows=rows.arguments, parts=_optional(parts), heads=heads, width=width, value_width=value_width,
            scale=width**-0.5, ahead=1024 * int(config["prefetch"]))
        call = NativeCall(kernel_library("attention").sparloom_attention, arguments, kept=(rows, parts))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: NativeCall, operands: Operands, result: np.ndarray) -> None:
        arguments, dense = call.arguments, operands.dense
        arguments.queries, arguments.keys, arguments.values = (address(dense[name]) for name in ("Q", "K", "V"))
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


SPARSE_FAMILIES: Mapping[str, type[SparseFamily]] = {
    "spmm": SpmmKernels, "spmm_max": SpmmMaxKernels, "sddmm": SddmmKernels, "attention": AttentionKernels}
"""Families of kernels of sparse operations, by operation."""


class _Spmm(ctypes.Structure):
    """The struct Spmm of kernels/cpu/spmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("strip", "ahead", "stream", "together")),
    )


class _SpmmMax(ctypes.Structure):
    """The struct SpmmMax of kernels/cpu/spmm_max.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries", "places", "carried_places")),
        ("width", ctypes.c_int64),
        ("ahead", ctypes.c_int32),
    )


class _Sddmm(ctypes.Structure):
    """The struct Sddmm of kernels/cpu/sddmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("left", "right", "result")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("ahead", "group")),
    )


class _Attention(ctypes.Structure):
    """The struct Attention of kernels/cpu/attention.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "result", "parts")),
        *((name, ctypes.c_int64) for name in ("heads", "width", "value_width")),
        ("scale", ctypes.c_float),
        ("ahead", ctypes.c_int32),
    )


@cache
def kernel_library(name: str) -> ctypes.CDLL:
    """Compile kernels/cpu/<name>.cpp, once per process."""
    return compile_cpp([f"cpu/{name}.cpp"])


def _carries(rows: BoundRows, width: int, dtype: type[np.generic] = np.float32) -> np.ndarray | None:
    """Allocate room for the partial results of rows that are shared by pieces; None where no row is."""
    return aligned((rows.count, width), dtype) if rows.pieces.cut else None


def _optional(array: np.ndarray | None, dtype: type[np.generic] = np.float32) -> int | None:
    return None if array is None else address(array, dtype)
