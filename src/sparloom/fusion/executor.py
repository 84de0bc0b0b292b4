"""Routines of the BLAS that SciPy brings, for calls from compiled code.

The structs and functions of kernels/cpu/fused.hpp.

Loops over rows of matrices as the kernels see them: the struct Fused, filled.

Products of three matrices by a tile schedule, computed by the kernels of kernels/cpu/fused.hpp.
"""

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from typing import Any

import numpy as np

from sparloom.forks import forkable
from sparloom.fusion.schedule import TileSchedule
from sparloom.jit import NativeCall, address, aligned, compile_cpp
from sparloom.measure import checked_threads
from sparloom.ops import GemmSpmm, Operands, SpmmGemm, SpmmSpmm
from sparloom.sparse import Pattern, SparseMatrix

__all__ = [
    "AtomicArguments", "BoundLoops", "CsrArguments", "CsrRows", "Executor", "FusedArguments", "KeptArrays", "Pair",
    "SharedCall", "TileArguments", "Variant", "Workspace", "blas_routine", "check_operands", "fill",
    "fused_library", "potential_gain",
]

PREFIX = {"float32": "s", "float64": "d"}


def blas_routine(name: str, dtype: np.dtype) -> int:
    """Give the address of a Fortran routine, such as "gemm" for SGEMM or DGEMM."""
    capsule = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__[PREFIX[dtype.name] + name]
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype, python.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule))


SOURCES = {"float32": "cpu/fused_f32.cpp", "float64": "cpu/fused_f64.cpp"}


class TileArguments(ctypes.Structure):
    """The struct of the same name in kernels/cpu/tiles.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "second", "second_ptr", "needed")),
        ("count", ctypes.c_int64 * 2),
        ("seconds", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("threads", "local")),
    )


class CsrArguments(ctypes.Structure):
    """The struct of the same name in kernels/cpu/csr.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("begin", "end", "indices", "values")),
        ("nnz", ctypes.c_int64),
    )


class FusedArguments(ctypes.Structure):
    """The struct of the same name in kernels/cpu/fused.hpp."""

    _fields_ = (
        ("tiles", TileArguments),
        *((name, CsrArguments) for name in ("a", "b")),
        *((name, ctypes.c_void_p) for name in (
            "dense_b", "c", "f", "g", "changes", "read", "write", "d1", "d", "packed", "buffers", "blas")),
        *((name, ctypes.c_int64) for name in ("rows", "inner", "width", "largest_tile", "ahead")),
        *((name, ctypes.c_int32) for name in ("together", "stream_first", "stream", "c_transposed")),
    )


class AtomicArguments(ctypes.Structure):
    """The struct of the same name in kernels/cpu/fused_baselines.hpp."""

    _fields_ = (
        ("pair", FusedArguments),
        *((name, ctypes.c_void_p) for name in ("crossing", "shared")),
        ("shared_rows", ctypes.c_int64),
    )


def fused_library(dtype: np.dtype) -> ctypes.CDLL:
    """Compile or find the products of one element type."""
    return _library(dtype.name)


@cache
def _library(name: str) -> ctypes.CDLL:
    library = compile_cpp([SOURCES[name]])
    library.sparloom_fused_buffer.restype = library.sparloom_fused_packed.restype = ctypes.c_int64
    return library


Pair = GemmSpmm | SpmmSpmm | SpmmGemm

KeptArrays = list[np.ndarray]
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

    def filled(self, kept: KeptArrays) -> CsrArguments:
        """Fill the struct."""
        kept += [self.begin, self.end, self.indices, self.values]
        return CsrArguments(
            begin=address(self.begin, np.int64), end=address(self.end, np.int64),
            indices=address(self.indices, np.int32), values=address(self.values, self.values.dtype.type),
            nnz=self.indices.size)


@dataclass(frozen=True)
class BoundLoops:
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


def fill(
    op: Pair, operands: Operands, result: np.ndarray, loops: BoundLoops, workspace: Workspace,
) -> tuple[FusedArguments, KeptArrays]:
    """Fill the struct of arguments; shapes have been checked."""
    kept: KeptArrays = [*operands.dense.values(), result]
    dtype, width = operands.matrix.dtype.type, op.width(operands)
    variant = loops.variant
    arguments = FusedArguments(
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


def _tiles(loops: BoundLoops, kept: KeptArrays) -> TileArguments:
    """Loop two in its natural order needs no list."""
    schedule = loops.schedule
    second = None if schedule.natural else address(schedule.second, np.int32)
    kept += [schedule.first, schedule.second, schedule.second_ptr, schedule.needed]
    return TileArguments(
        first=address(schedule.first, np.int64), second=second,
        second_ptr=address(schedule.second_ptr, np.int64), needed=address(schedule.needed, np.uint8),
        count=schedule.tiles, threads=loops.threads, local=loops.variant.local)


def _fill_dense(arguments: FusedArguments, operands: Operands, loops: BoundLoops) -> None:
    dense = operands.dense["B"]
    arguments.dense_b, arguments.inner = address(dense, operands.matrix.dtype.type), dense.shape[1]
    if loops.variant.blas:
        arguments.blas = blas_routine("gemm", operands.matrix.dtype)


def _fill_buffers(
    arguments: FusedArguments, lead: int, loops: BoundLoops, workspace: Workspace, kept: KeptArrays,
) -> None:
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


PLAIN = Variant()  # Algorithm 1 as in the paper


@dataclass
class Executor:
    """Computes D by one schedule, for any operands on the pattern that it was made for.

    D1 and the buffers of threads are allocated by the first `bind` and stay, so calls by several threads run one after
    the other; when shapes change they are allocated anew.

    Args:
        schedule: legal for the pattern of A, see `check_schedule`; with an `order`, for the pattern in that order.
        threads: of every call.
        order: (n,) int32, iteration -> row of the matrices, which stay as they are. Not for SpMM-GeMM: its iterations
            depend on nothing but their own row.
        timed: `seconds` is filled by every call.
        workspace: D1 and the buffers; executors may share one, and take turns.
    """

    op: Pair
    schedule: TileSchedule
    threads: int
    variant: Variant = PLAIN
    order: np.ndarray | None = None
    timed: bool = False
    workspace: Workspace = field(default_factory=Workspace, repr=False)
    _columns: tuple[Pattern, np.ndarray] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.threads = checked_threads(self.threads)
        if self.op.name == "spmm_gemm" and (self.order is not None or not self.schedule.natural):
            raise ValueError("rows of spmm_gemm do not depend on each other: give a schedule in natural order, and no "
                             "order of rows")
        if self.order is not None and self.variant.blas:
            raise ValueError("a BLAS takes rows of B as they lie: give no order, or a variant without blas")
        self.seconds = np.zeros((2, self.threads))
        """What each thread worked in each wavefront of the last call."""

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return aligned((operands.matrix.pattern.rows, self.op.width(operands)), operands.matrix.dtype.type)

    def bind(self, operands: Operands, result: np.ndarray, *, changes: np.ndarray | None = None) -> NativeCall:
        """Bind the kernel to arrays; the call overwrites `result`.

        Args:
            changes: of SpMM-SpMM: (tiles of wavefront 0, width), overwritten with the sum of (D1 - C)² over the rows of
                each tile, by column; added up they are the same whichever thread ran a tile.

        Raises:
            ValueError: operands, result and schedule do not fit together; an array is not contiguous or of another type
                than the values of A.
        """
        self._check(operands.matrix.pattern)
        check_operands(self.op, operands, result)
        a = CsrRows.of(operands.matrix, self.order, self._renumbered(operands.matrix))
        loops = BoundLoops(self.schedule, self.threads, self.variant, a, read=self.order, write=self.order)
        arguments, kept = fill(self.op, operands, result, loops, self.workspace)
        if changes is not None:
            self._check_changes(operands, changes)
            arguments.changes = address(changes, operands.matrix.dtype.type, written=True)
            kept.append(changes)
        if self.timed:
            arguments.tiles.seconds = address(self.seconds, np.float64, written=True)
        kernel = getattr(fused_library(operands.matrix.dtype), f"sparloom_{self.op.name}")
        return SharedCall(kernel, arguments, self.workspace, kept=(*kept, self.seconds))

    def rebind(self, call: NativeCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call of `bind` to other arrays of the same shapes, for much less than binding costs.

        The caller keeps them alive while the call runs. Not for SpMM-SpMM.

        Raises:
            ValueError: as by `bind`.
        """
        check_operands(self.op, operands, result)
        dtype, arguments = operands.matrix.dtype.type, call.arguments
        arguments.a.values = address(operands.matrix.values, dtype)
        arguments.dense_b, arguments.c = (address(operands.dense[name], dtype) for name in ("B", "C"))
        arguments.d = address(result, dtype, written=True)

    def _check(self, pattern: Pattern) -> None:
        middle = pattern.rows if self.op.name == "spmm_gemm" else pattern.cols
        if self.schedule.iterations != (middle, pattern.rows):
            raise ValueError(f"a schedule of {self.schedule.iterations} iterations for loops of {middle} and "
                             f"{pattern.rows}: schedule the pattern that is multiplied")
        if self.order is not None and self.order.shape != (pattern.rows,):
            raise ValueError(f"an order of {self.order.size} rows for {pattern.rows}")

    def _check_changes(self, operands: Operands, changes: np.ndarray) -> None:
        if self.op.name != "spmm_spmm" or operands.right.pattern.rows != operands.right.pattern.cols:
            raise ValueError("changes from C to D1: only spmm_spmm with a square B has both of one shape")
        shape = (self.schedule.tiles[0], self.op.width(operands))
        if changes.shape != shape:
            raise ValueError(f"changes have shape {changes.shape}, not {shape}: a row for each tile of wavefront 0")
        for name, array in _read(operands):
            if np.may_share_memory(array, changes):
                raise ValueError(f"changes overlap {name}: give an array of their own")
        changes.fill(0)  # tiles without rows write nothing

    def _renumbered(self, matrix: SparseMatrix) -> np.ndarray | None:
        """The columns of A as iterations of loop one; kept for the pattern seen last."""
        if self.order is None:
            return None
        if self._columns is None or self._columns[0] is not matrix.pattern:
            iteration = np.empty_like(self.order)
            iteration[self.order] = np.arange(self.order.size, dtype=np.int32)
            self._columns = matrix.pattern, iteration[matrix.pattern.indices]
        return self._columns[1]


def check_operands(op: Pair, operands: Operands, result: np.ndarray) -> None:
    """Check that shapes fit together and that the result is an array of its own.

    Raises:
        ValueError: names the first array that does not fit.
    """
    pattern, dtype, width = operands.matrix.pattern, operands.matrix.dtype, op.width(operands)
    for name, shape in _shapes(op, operands).items():
        if operands.dense[name].shape != shape:
            raise ValueError(f"{name} has shape {operands.dense[name].shape}, not {shape}")
    if result.shape != (pattern.rows, width) or result.dtype != dtype:
        raise ValueError(f"the result is {result.dtype} of shape {result.shape}, not {dtype} of "
                         f"{(pattern.rows, width)}")
    for name, array in _read(operands):
        if np.may_share_memory(array, result):
            raise ValueError(f"the result overlaps {name}: give an array of its own")


def _read(operands: Operands) -> Iterator[tuple[str, np.ndarray]]:
    """Name all arrays that a product reads."""
    yield from operands.dense.items()
    for side, matrix in (("A", operands.matrix), ("B", operands.right)):
        if matrix is not None and (side == "A" or matrix is not operands.matrix):
            yield from ((f"values of {side}", matrix.values), (f"indptr of {side}", matrix.pattern.indptr),
                        (f"indices of {side}", matrix.pattern.indices))


def potential_gain(seconds: np.ndarray) -> float:
    """Give the seconds that a call would save if the work of each wavefront were shared evenly.

    Args:
        seconds: (wavefronts, threads), see `Executor.seconds`.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.2.2: the mean difference between the
    slowest thread and each.
    """
    return float((seconds.max(axis=1, keepdims=True) - seconds).mean(axis=1).sum())


def _shapes(op: Pair, operands: Operands) -> dict[str, tuple[int, int]]:
    """What the dense operands must look like for A, and B where it is sparse."""
    cols, width = operands.matrix.pattern.cols, op.width(operands)
    if op.name == "spmm_spmm":
        if operands.right is None or operands.right.pattern.rows != cols:
            raise ValueError(f"A has {cols} columns: B must be sparse with as many rows")
        if operands.right.dtype != operands.matrix.dtype:
            raise ValueError(f"B has values of {operands.right.dtype}, A of {operands.matrix.dtype}: use astype")
        addends = {"F": (cols, width), "G": (operands.matrix.pattern.rows, width)} if op.addends else {}
        return {"C": (operands.right.pattern.cols, width), **addends}
    inner = operands.dense["B"].shape[1]
    transposed = op.name == "gemm_spmm" and op.c_transposed
    return {"B": (cols, inner), "C": (width, inner) if transposed else (inner, width)}
