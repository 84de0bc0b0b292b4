"""Products of three matrices by a tile schedule: kernels of kernels/cpu/fused.hpp, their variants, and the space."""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
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
from sparloom.space import Config, GridSpace, Parameter
from sparloom.sparse import Pattern, SparseMatrix

SOURCES = {"float32": "cpu/fused_f32.cpp", "float64": "cpu/fused_f64.cpp"}

Pair = GemmSpmm | SpmmSpmm | SpmmGemm
"""Any of the products of three matrices that can be fused."""

CT_SIZES = (0, 1024, 2048, 4096, 8192, 16384)  # most iterations of a coarse tile; 0: nothing is fused
CACHES = (0, 1024, 2048, 4096, 8192, 16384, 32768)  # KiB of one thread; 0: nothing is fused
VARIANT_PARAMETERS = (  # see Variant; the last one in KiB
    *(Parameter(name, (0, 1)) for name in ("local", "stream", "stream_first")), Parameter("prefetch", (0, 4)))
COUPLED = ("ct_size", "cache", "local", "stream_first")


@dataclass(frozen=True)
class Variant:
    """Options of the kernels. They change speed, and the result only by rounding.

    Args:
        local: each thread keeps the rows of D1 of its tile in a buffer, and only rows that wavefront 1 reads are
            written to memory. Otherwise D1 is one matrix, as in the paper.
        stream: write D with non-temporal stores where its rows are whole vectors.
        stream_first: write D1 with non-temporal stores, unless it is local.
        prefetch_bytes: how much of a gathered dense row to prefetch.
    """

    local: bool = False
    stream: bool = False
    stream_first: bool = False
    prefetch_bytes: int = 0


DEFAULT_VARIANT = Variant()  # Algorithm 1 as in the paper


def TileFusionSpace(op: str) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of schedules and variants: 8 points without fusion, and 360 with it."""
    return GridSpace(
        name="tile_fusion", op=op, defaults=(0,) * 6, refuse=_refuse, coupled=COUPLED, meaning="tile_fusion 2",
        parameters=(Parameter("ct_size", CT_SIZES), Parameter("cache", CACHES), *VARIANT_PARAMETERS))


def _refuse(config: Config) -> str | None:
    ct_size, cache = config["ct_size"], config["cache"]
    if (ct_size == 0) != (cache == 0):
        return f"ct_size={ct_size} and cache={cache}: both are 0 where nothing is fused, else above"
    if config["local"] and ct_size == 0:
        return "local=1 keeps rows of D1 from one loop to the next, and nothing is fused"
    if config["local"] and config["stream_first"]:
        return "stream_first=1 of rows that stay with their thread (local=1)"
    return None


class Workspace:
    """D1 and the thread-local buffers, reused by successive calls, each of which holds the lock."""

    def __init__(self) -> None:
        self.lock = forkable(RLock())
        self._arrays: dict[str, np.ndarray] = {}

    def __reduce__(self) -> tuple[type["Workspace"], tuple[()]]:
        """Give copies a lock and buffers of their own."""
        return Workspace, ()

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return the buffer of this name; allocate it, with its pages touched, if the shape or type has changed."""
        array = self._arrays.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            array = aligned(shape, dtype.type)
            array.fill(0)  # before another thread may compute in it
            self._arrays[name] = array
        return array


@dataclass
class Executor:
    """Computes D by one schedule, for any operands on the pattern that the schedule was made for.

    The first `bind` allocates D1 and the buffers; other shapes reallocate them. Concurrent calls run one after another,
    since they share these buffers.

    Args:
        schedule: legal for the pattern of A, see `check_schedule`.
        timed: fill `seconds` in each call.
        workspace: executors may share one.
    """

    op: Pair
    schedule: TileSchedule
    threads: int
    variant: Variant = DEFAULT_VARIANT
    timed: bool = False
    workspace: Workspace = field(default_factory=Workspace, repr=False)

    def __post_init__(self) -> None:
        self.threads = checked_threads(self.threads)
        if self.op.name == "spmm_gemm" and not self.schedule.natural:
            raise ValueError("rows of spmm_gemm do not depend on each other: give a schedule in natural order")
        self.seconds = np.zeros((2, self.threads))
        """Busy seconds of each thread in each wavefront of the last call."""

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return aligned((operands.matrix.pattern.rows, self.op.width(operands)), operands.matrix.dtype.type)

    def bind(self, operands: Operands, result: np.ndarray, *, changes: np.ndarray | None = None) -> NativeCall:
        """Bind the kernel to arrays; each call overwrites `result`.

        Args:
            changes: for SpMM-SpMM, (tiles of wavefront 0, width). Overwritten with the sum of (D1 - C)² over the rows
                of each tile, by column. Its sum over tiles does not depend on which thread ran a tile.

        Raises:
            ValueError: operands, result and schedule do not match in shape or type; an array is not contiguous.
        """
        self._check_schedule(operands.matrix.pattern)
        check_operands(self.op, operands, result)
        loops = BoundLoops(self.schedule, self.threads, self.variant, CsrRows.of(operands.matrix))
        arguments, kept = fill_arguments(self.op, operands, result, loops, self.workspace)
        if changes is not None:
            self._check_changes(operands, changes)
            arguments.changes = address(changes, operands.matrix.dtype.type, written=True)
            kept.append(changes)
        if self.timed:
            arguments.tiles.seconds = address(self.seconds, np.float64, written=True)
        kernel = getattr(fused_library(operands.matrix.dtype), f"sparloom_{self.op.name}")
        return _LockedCall(kernel, arguments, self.workspace, kept=(*kept, self.seconds))

    def rebind(self, call: NativeCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call made by `bind` to other arrays of the same shapes, which is much cheaper than binding again.

        The caller keeps the arrays alive while the call runs. SpMM-SpMM is not supported.
        """
        check_operands(self.op, operands, result)
        dtype, arguments = operands.matrix.dtype.type, call.arguments
        arguments.a.values = address(operands.matrix.values, dtype)
        arguments.dense_b, arguments.c = (address(operands.dense[name], dtype) for name in ("B", "C"))
        arguments.d = address(result, dtype, written=True)

    def _check_schedule(self, pattern: Pattern) -> None:
        middle = pattern.rows if self.op.name == "spmm_gemm" else pattern.cols
        if self.schedule.iterations != (middle, pattern.rows):
            raise ValueError(f"a schedule of {self.schedule.iterations} iterations for loops of {middle} and "
                             f"{pattern.rows}: schedule the pattern that is multiplied")

    def _check_changes(self, operands: Operands, changes: np.ndarray) -> None:
        if self.op.name != "spmm_spmm" or operands.right.pattern.rows != operands.right.pattern.cols:
            raise ValueError("changes from C to D1 need spmm_spmm with a square B, where both have one shape")
        shape = (self.schedule.tiles[0], self.op.width(operands))
        if changes.shape != shape:
            raise ValueError(f"changes have shape {changes.shape}, not {shape}: a row for each tile of wavefront 0")
        check_overlap("changes overlap", changes, _arrays_read(operands))
        changes.fill(0)  # tiles without rows write nothing


def check_operands(op: Pair, operands: Operands, result: np.ndarray) -> None:
    """Check that shapes match and that the result overlaps no operand."""
    pattern, dtype, width = operands.matrix.pattern, operands.matrix.dtype, op.width(operands)
    for name, shape in _dense_shapes(op, operands).items():
        if operands.dense[name].shape != shape:
            raise ValueError(f"{name} has shape {operands.dense[name].shape}, not {shape}")
    if result.shape != (pattern.rows, width) or result.dtype != dtype:
        raise ValueError(f"the result is {result.dtype} of shape {result.shape}, not {dtype} of "
                         f"{(pattern.rows, width)}")
    check_overlap("the result overlaps", result, _arrays_read(operands))


def check_overlap(what: str, written: np.ndarray, others: Iterable[tuple[str, np.ndarray]]) -> None:
    """Refuse an array to be written that shares memory with another; `what` begins the message."""
    for name, array in others:
        if np.may_share_memory(array, written):
            raise ValueError(f"{what} {name}: give an array of its own")


def _arrays_read(operands: Operands) -> Iterator[tuple[str, np.ndarray]]:
    """Yield all arrays that a product reads, with their names."""
    yield from operands.dense.items()
    for side, matrix in (("A", operands.matrix), ("B", operands.right)):
        if matrix is not None and (side == "A" or matrix is not operands.matrix):
            yield from ((f"values of {side}", matrix.values), (f"indptr of {side}", matrix.pattern.indptr),
                        (f"indices of {side}", matrix.pattern.indices))


def _dense_shapes(op: Pair, operands: Operands) -> dict[str, tuple[int, int]]:
    """Derive the shapes of the dense operands from A, and from B where it is sparse."""
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


class TileArguments(ctypes.Structure):
    """The struct Tiles of kernels/cpu/tiles.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "second", "second_ptr", "needed")),
        ("count", ctypes.c_int64 * 2),
        ("seconds", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("threads", "local")),
    )


class CsrArguments(ctypes.Structure):
    """The struct Csr of kernels/cpu/csr.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("begin", "end", "indices", "values")),
        ("nnz", ctypes.c_int64),
    )


class FusedArguments(ctypes.Structure):
    """The struct Fused of kernels/cpu/fused.hpp."""

    _fields_ = (
        ("tiles", TileArguments),
        *((name, CsrArguments) for name in ("a", "b")),
        *((name, ctypes.c_void_p) for name in (
            "dense_b", "c", "f", "g", "changes", "read", "write", "d1", "d", "packed", "buffers", "blas")),
        *((name, ctypes.c_int64) for name in ("rows", "inner", "width", "largest_tile", "ahead")),
        *((name, ctypes.c_int32) for name in ("together", "stream_first", "stream", "c_transposed")),
    )


@dataclass(frozen=True)
class CsrRows:
    """Rows of a sparse matrix: row r holds the nonzeros begin[r] to end[r], in any order of rows and columns."""

    begin: np.ndarray
    end: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    @classmethod
    def of(
        cls, matrix: SparseMatrix, rows: np.ndarray | None = None, indices: np.ndarray | None = None,
    ) -> "CsrRows":
        """Select `rows` of a matrix in this order (default: all); `indices` (nnz,) int32 replace the columns."""
        pattern = matrix.pattern
        begin, end = pattern.indptr[:-1], pattern.indptr[1:]
        if rows is not None:
            begin, end = begin[rows], end[rows]
        return cls(begin, end, pattern.indices if indices is None else indices, matrix.values)

    def arguments(self, kept: list[np.ndarray]) -> CsrArguments:
        """Fill the struct, and append the arrays that it points to."""
        kept += [self.begin, self.end, self.indices, self.values]
        return CsrArguments(
            begin=address(self.begin, np.int64), end=address(self.end, np.int64),
            indices=address(self.indices, np.int32), values=address(self.values, self.values.dtype.type),
            nnz=self.indices.size)


@dataclass(frozen=True)
class BoundLoops:
    """Two loops with their schedule and the rows that they access.

    Args:
        a: rows of A by iteration of loop two; their columns are iterations of loop one.
        read: (|I|,) int32, row of B for each iteration of loop one (default: the iteration).
        write: (|J|,) int32, row of D for each iteration of loop two (default: the iteration).
    """

    schedule: TileSchedule
    threads: int
    variant: Variant
    a: CsrRows
    read: np.ndarray | None = None
    write: np.ndarray | None = None

    def __post_init__(self) -> None:
        checked_threads(self.threads)


class _LockedCall(NativeCall):
    """A call that holds the lock of its workspace."""

    def __init__(self, run: Any, arguments: ctypes.Structure, workspace: Workspace, *, kept: Sequence[Any]) -> None:
        super().__init__(run, arguments, kept=kept)
        self._lock = workspace.lock

    def __call__(self) -> None:
        with self._lock:
            super().__call__()


def fill_arguments(
    op: Pair, operands: Operands, result: np.ndarray, loops: BoundLoops, workspace: Workspace,
) -> tuple[FusedArguments, list[np.ndarray]]:
    """Fill the struct of arguments, after shapes have been checked; also return the arrays that it points to."""
    kept: list[np.ndarray] = [*operands.dense.values(), result]
    dtype, width = operands.matrix.dtype.type, op.width(operands)
    variant = loops.variant
    arguments = FusedArguments(
        tiles=_tile_arguments(loops, kept), a=loops.a.arguments(kept), c=address(operands.dense["C"], dtype),
        d=address(result, dtype, written=True), rows=result.shape[0], width=width,
        largest_tile=loops.schedule.largest_tile, ahead=variant.prefetch_bytes, together=True,
        stream=variant.stream, stream_first=variant.stream_first,
        c_transposed=op.name == "gemm_spmm" and op.c_transposed)
    for name in ("read", "write"):
        order = getattr(loops, name)
        if order is not None:
            setattr(arguments, name, address(order, np.int32))
            kept.append(order)
    if op.name == "spmm_spmm":
        arguments.b = CsrRows.of(operands.right, loops.read).arguments(kept)
        if op.addends:
            arguments.f, arguments.g = (address(operands.dense[name], dtype) for name in ("F", "G"))
    else:
        dense = operands.dense["B"]
        arguments.dense_b, arguments.inner = address(dense, dtype), dense.shape[1]
    _allocate_buffers(arguments, arguments.inner if op.name == "spmm_gemm" else width, loops, workspace, kept)
    return arguments, kept


def _tile_arguments(loops: BoundLoops, kept: list[np.ndarray]) -> TileArguments:
    schedule = loops.schedule
    second = None if schedule.natural else address(schedule.second, np.int32)  # natural order needs no list
    kept += [schedule.first, schedule.second, schedule.second_ptr, schedule.needed]
    return TileArguments(
        first=address(schedule.first, np.int64), second=second,
        second_ptr=address(schedule.second_ptr, np.int64), needed=address(schedule.needed, np.uint8),
        count=schedule.tiles, threads=loops.threads, local=loops.variant.local)


def _allocate_buffers(
    arguments: FusedArguments, lead: int, loops: BoundLoops, workspace: Workspace, kept: list[np.ndarray],
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


@cache
def fused_library(dtype: np.dtype) -> ctypes.CDLL:
    """Compile the kernels of one element type, or load them from the cache."""
    library = compile_cpp([SOURCES[dtype.name]])
    library.sparloom_fused_buffer.restype = library.sparloom_fused_packed.restype = ctypes.c_int64
    return library
