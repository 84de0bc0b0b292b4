"""Loops over rows of matrices as the kernels see them: the struct Fused, filled."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np

from sparloom.forks import forkable
from sparloom.fusion.blas import blas_routine
from sparloom.fusion.native import Csr, Fused, Tiles, fused_library
from sparloom.fusion.schedule import TileSchedule
from sparloom.jit import NativeCall, address, aligned
from sparloom.measure import checked_threads
from sparloom.ops import GemmSpmm, Operands, SpmmGemm, SpmmSpmm
from sparloom.sparse import SparseMatrix

__all__ = ["CsrRows", "Kept", "Loops", "Pair", "SharedCall", "Variant", "Workspace", "fill"]

Pair = GemmSpmm | SpmmSpmm | SpmmGemm

Kept = list[np.ndarray]
"""Arrays to which the addresses in a struct point."""


@dataclass(frozen=True)
class Variant:
    """How rows are computed and where they go; none of it changes the result beyond rounding.

    Args:
        local: a thread keeps the rows of D1 of its tile; only those that wavefront 1 reads go to memory. Otherwise D1
            is one matrix, as in the paper.
        stream: D is written past the caches, where its rows are whole vectors.
        stream_first: likewise D1, unless it is local.
        prefetch_bytes: of a gathered dense operand that are requested before their turn.
        together: rows with equal columns are summed side by side.
        blas: dense tiles are multiplied by SciPy's BLAS; limit it to one thread (threadpoolctl).
    """

    local: bool = False
    stream: bool = False
    stream_first: bool = False
    prefetch_bytes: int = 0
    together: bool = True
    blas: bool = False


@dataclass(frozen=True)
class CsrRows:
    """Rows of a sparse matrix: nonzeros begin[r] .. end[r] belong to row r, in any order of rows and of columns."""

    begin: np.ndarray
    end: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    @classmethod
    def of(
        cls, matrix: SparseMatrix, rows: np.ndarray | None = None, indices: np.ndarray | None = None,
    ) -> "CsrRows":
        """Take the rows of a matrix.

        Args:
            rows: which, in which order; all as they are stored unless given.
            indices: (nnz,) int32, in place of the columns.
        """
        pattern = matrix.pattern
        begin, end = pattern.indptr[:-1], pattern.indptr[1:]
        if rows is not None:
            begin, end = begin[rows], end[rows]
        return cls(begin, end, pattern.indices if indices is None else indices, matrix.values)

    def filled(self, kept: Kept) -> Csr:
        """Fill the struct."""
        kept += [self.begin, self.end, self.indices, self.values]
        return Csr(
            begin=address(self.begin, np.int64), end=address(self.end, np.int64),
            indices=address(self.indices, np.int32), values=address(self.values, self.values.dtype.type),
            nnz=self.indices.size)


@dataclass(frozen=True)
class Loops:
    """Two loops and how they are executed.

    Args:
        a: the rows of A, by iteration of loop two; columns are iterations of loop one.
        read: (|I|,) int32, row of B for each iteration of loop one; 0, 1, 2, ... unless given.
        write: (|J|,) int32, row of D for each iteration of loop two; likewise.
    """

    schedule: TileSchedule
    threads: int
    variant: Variant
    a: CsrRows
    read: np.ndarray | None = None
    write: np.ndarray | None = None

    def __post_init__(self) -> None:
        checked_threads(self.threads)


class Workspace:
    """D1 and the buffers of threads, kept from call to call.

    Attributes:
        turn: held by the one call at a time that uses them.
    """

    def __init__(self) -> None:
        self.turn = forkable(RLock())
        self._arrays: dict[str, np.ndarray] = {}

    def __reduce__(self) -> tuple[type["Workspace"], tuple[()]]:
        """Let copies have arrays and turns of their own, which they allocate when they need them."""
        return Workspace, ()

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Give the array of this name, anew if it had another shape; its pages are there before the first call."""
        known = self._arrays.get(name)
        if known is None or known.shape != shape or known.dtype != dtype:
            known = self._arrays[name] = aligned(shape, dtype.type)
            known.fill(0)
        return known


class SharedCall(NativeCall):
    """A call on a workspace that other calls use, too; calls by several threads run one after the other."""

    def __init__(self, run: Any, arguments: ctypes.Structure, workspace: Workspace, *, kept: Sequence[Any]) -> None:
        super().__init__(run, arguments, kept=kept)
        self._turn = workspace.turn

    def __call__(self) -> None:
        with self._turn:
            super().__call__()


def fill(op: Pair, operands: Operands, result: np.ndarray, loops: Loops, workspace: Workspace) -> tuple[Fused, Kept]:
    """Fill the struct of arguments; shapes have been checked."""
    kept: Kept = [*operands.dense.values(), result]
    dtype, width = operands.matrix.dtype.type, op.width(operands)
    variant = loops.variant
    arguments = Fused(
        tiles=_tiles(loops, kept), a=loops.a.filled(kept), c=address(operands.dense["C"], dtype),
        d=address(result, dtype, written=True), rows=result.shape[0], width=width,
        largest_tile=loops.schedule.largest_tile, ahead=variant.prefetch_bytes, together=variant.together,
        stream=variant.stream, stream_first=variant.stream_first,
        c_transposed=op.name == "gemm_spmm" and op.c_transposed)
    for name in ("read", "write"):
        order = getattr(loops, name)
        if order is not None:
            setattr(arguments, name, address(order, np.int32))
            kept.append(order)
    if op.name == "spmm_spmm":
        arguments.b = CsrRows.of(operands.right, loops.read).filled(kept)
        if op.addends:
            arguments.f, arguments.g = (address(operands.dense[name], dtype) for name in ("F", "G"))
    else:
        _fill_dense(arguments, operands, loops)
    _fill_buffers(arguments, arguments.inner if op.name == "spmm_gemm" else width, loops, workspace, kept)
    return arguments, kept


def _tiles(loops: Loops, kept: Kept) -> Tiles:
    """Loop two in its natural order needs no list."""
    schedule = loops.schedule
    second = None if schedule.natural else address(schedule.second, np.int32)
    kept += [schedule.first, schedule.second, schedule.second_ptr, schedule.needed]
    return Tiles(
        first=address(schedule.first, np.int64), second=second,
        second_ptr=address(schedule.second_ptr, np.int64), needed=address(schedule.needed, np.uint8),
        count=schedule.tiles, threads=loops.threads, local=loops.variant.local)


def _fill_dense(arguments: Fused, operands: Operands, loops: Loops) -> None:
    dense = operands.dense["B"]
    arguments.dense_b, arguments.inner = address(dense, operands.matrix.dtype.type), dense.shape[1]
    if loops.variant.blas:
        arguments.blas = blas_routine("gemm", operands.matrix.dtype)


def _fill_buffers(arguments: Fused, lead: int, loops: Loops, workspace: Workspace, kept: Kept) -> None:
    dtype = loops.a.values.dtype
    library, filled = fused_library(dtype), ctypes.byref(arguments)
    shapes = {
        "d1": (loops.schedule.iterations[0], lead),
        "buffers": (library.sparloom_fused_buffer(filled, ctypes.c_int64(lead)) * loops.threads,),
        "packed": (library.sparloom_fused_packed(filled),),
    }
    for name, shape in shapes.items():
        array = workspace.array(name, shape, dtype)
        setattr(arguments, name, array.ctypes.data)
        kept.append(array)
