"""The two loops that are fused, their tile schedules, the inspector that makes them, and the check of legality."""

import ctypes
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.jit import check_memory, compile_cpp
from sparloom.measure import checked_threads
from sparloom.sparse import Pattern

INDEX_BYTES, POINTER_BYTES = 4, 8
ARRAYS = {"first": np.int64, "second": np.int32, "second_ptr": np.int64, "needed": np.uint8}
UNLIMITED = 2**62  # bytes
TILES_PER_THREAD = 16
ROW_WORK = 4  # cost of starting a row, in nonzeros


@dataclass(frozen=True, eq=False)
class Reads:
    """CSR of the rows of a dense array that each iteration of a loop reads. The inspector checks the indices.

    Args:
        indptr: (iterations + 1,) int64, increasing from 0 to the number of reads.
        indices: (reads,) int32; within an iteration in any order, with or without repeats.
        extent: number of rows of the dense array.
        rising: the indices of each iteration increase and lie in 0 .. extent - 1, so they need no check.
    """

    indptr: np.ndarray
    indices: np.ndarray
    extent: int
    rising: bool = False

    def __post_init__(self) -> None:
        _check_arrays(self, {"indptr": np.int64, "indices": np.int32})
        ends = (self.indptr[0], self.indptr[-1]) if self.indptr.size else ()
        if ends != (0, self.indices.size) or not (self.rising or (self.indptr[1:] >= self.indptr[:-1]).all()):
            raise ValueError(f"indptr does not rise from 0 to {self.indices.size}")

    @classmethod
    def of(cls, pattern: Pattern) -> "Reads":
        """View the columns of a pattern, without a copy."""
        return cls(pattern.indptr, pattern.indices, pattern.cols, rising=True)

    @property
    def iterations(self) -> int:
        """Number of iterations of the loop."""
        return self.indptr.size - 1


@dataclass(frozen=True)
class Loop:
    """A parallel loop with the terms of the cost model (Equation 4).

    Args:
        reads: rows that it reads through indices, or None.
        iteration_bytes: moved per iteration: its rows of dense arrays, its pointers of sparse ones.
        nonzero_bytes: moved per index read: the index and its value.
        column_bytes: moved per distinct index of a tile: the dense row that the index selects.
    """

    iterations: int
    reads: Reads | None
    iteration_bytes: int
    nonzero_bytes: int = 0
    column_bytes: int = 0

    def __post_init__(self) -> None:
        if self.reads is not None and self.reads.iterations != self.iterations:
            raise ValueError(f"reads of {self.reads.iterations} iterations for a loop of {self.iterations}")


@dataclass(frozen=True)
class FusedLoops:
    """Two loops to fuse. Iteration j of loop two depends on the iterations of loop one that it reads.

    Without `reads`, iteration j depends only on iteration j.

    Raises:
        ValueError: the loops differ in length, or loop two reads rows that loop one does not write.
    """

    one: Loop
    two: Loop

    def __post_init__(self) -> None:
        ones, twos = self.one.iterations, self.two.iterations
        if ones != twos:
            raise ValueError(f"loops of {ones} and {twos} iterations: only loops of one length are fused")
        if self.two.reads is not None and self.two.reads.extent != ones:
            raise ValueError(f"loop two reads {self.two.reads.extent} rows, but loop one writes {ones}")


def gemm_spmm_loops(matrix: Reads, *, inner: int, width: int, element_bytes: int) -> FusedLoops:
    """Describe D1 = B C (loop one), D = A D1 (loop two), with `inner` columns of B and `width` columns of C."""
    row = width * element_bytes
    one = Loop(matrix.iterations, None, inner * element_bytes + row)
    return FusedLoops(one, _sparse_loop(matrix, row_bytes=row, element_bytes=element_bytes))


def spmm_spmm_loops(matrix: Reads, inner: Reads, *, width: int, element_bytes: int) -> FusedLoops:
    """Describe D1 = B C (loop one), D = A D1 (loop two), with B sparse (`inner`) and `width` columns of C."""
    one, two = (_sparse_loop(reads, row_bytes=width * element_bytes, element_bytes=element_bytes)
                for reads in (inner, matrix))
    return FusedLoops(one, two)


def spmm_gemm_loops(matrix: Reads, *, inner: int, width: int, element_bytes: int) -> FusedLoops:
    """Describe D1 = A B (loop one), D = D1 C (loop two): one to one, with `inner` columns of B, `width` of C."""
    one = _sparse_loop(matrix, row_bytes=inner * element_bytes, element_bytes=element_bytes)
    return FusedLoops(one, Loop(matrix.iterations, None, width * element_bytes))


def _check_arrays(owner: object, dtypes: Mapping[str, type[np.generic]]) -> None:
    for name, dtype in dtypes.items():
        array = getattr(owner, name)
        if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}: it must be a contiguous list of "
                             f"{np.dtype(dtype)}")


def _sparse_loop(reads: Reads, *, row_bytes: int, element_bytes: int) -> Loop:
    return Loop(reads.iterations, reads, iteration_bytes=row_bytes + POINTER_BYTES,
                nonzero_bytes=element_bytes + INDEX_BYTES, column_bytes=row_bytes)


@dataclass(frozen=True, eq=False)
class TileSchedule:
    """Tiles in two wavefronts with a barrier between them; tiles of one wavefront are independent.

    Loop one has the iterations I, loop two the iterations J:

        for v in tiles of wavefront 0:                                  in parallel
            for i in first[v] .. first[v + 1]:                          loop one
            for j in second[second_ptr[v] .. second_ptr[v + 1]]:        loop two: reads only this tile
        barrier
        for v in tiles of wavefront 1:                                  in parallel
            for j in second[second_ptr[tiles[0] + v] .. ]:              loop two: the rest

    Args:
        tiles: number of tiles of wavefronts 0 and 1.
        first: (tiles[0] + 1,) int64, increasing from 0 to |I|.
        second: (|J|,) int32, each iteration of loop two once, in execution order.
        second_ptr: (tiles[0] + tiles[1] + 1,) int64, increasing from 0 to |J|.
        needed: (|I|,) uint8, 1 where wavefront 1 reads what iteration i of loop one wrote. Other results are read only
            in their own tile.
        build_seconds: time of the inspector; ignored by comparisons.

    Types and sizes are checked here, contents only by `check_schedule`.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, Listing 3 and §4.
    """

    tiles: tuple[int, int]
    first: np.ndarray
    second: np.ndarray
    second_ptr: np.ndarray
    needed: np.ndarray
    build_seconds: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        _check_arrays(self, ARRAYS)
        sizes = {"first": self.tiles[0] + 1, "second_ptr": sum(self.tiles) + 1}
        for name, size in sizes.items():
            if getattr(self, name).size != size:
                raise ValueError(f"{name} has {getattr(self, name).size} elements: {self.tiles} tiles need {size}")

    @property
    def iterations(self) -> tuple[int, int]:
        """|I| and |J|."""
        return self.needed.size, self.second.size

    @cached_property
    def natural(self) -> bool:
        """Tell whether loop two runs in natural order."""
        return np.array_equal(self.second, np.arange(self.second.size))

    @property
    def fused(self) -> int:
        """Number of iterations of loop two in wavefront 0."""
        return int(self.second_ptr[self.tiles[0]])

    @property
    def fused_ratio(self) -> float:
        """Fused iterations divided by |I| + |J| (Equation 3); at most 1/2 for a square operand."""
        return self.fused / max(1, sum(self.iterations))

    @property
    def fused_rows(self) -> float:
        """Fused share of loop two, in [0, 1]."""
        return self.fused / max(1, self.second.size)

    @property
    def largest_tile(self) -> int:
        """Maximum number of iterations of loop one in a tile, which is the number of rows in a thread's buffer."""
        return int(np.diff(self.first).max(initial=0))

    def digest(self) -> str:
        """Return the SHA-256 of the schedule in hexadecimal, the same on every machine."""
        content = hashlib.sha256(np.array(self.tiles, dtype="<i8").tobytes())
        for name, dtype in ARRAYS.items():
            content.update(getattr(self, name).astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes())
        return content.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TileSchedule):
            return NotImplemented
        arrays = (np.array_equal(getattr(self, name), getattr(other, name)) for name in ARRAYS)
        return self.tiles == other.tiles and all(arrays)

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        ones, twos = self.iterations
        return f"TileSchedule({ones} + {twos} iterations, {self.tiles} tiles, {self.fused_rows:.1%} of loop two fused)"


def schedule_tiles(loops: FusedLoops, *, threads: int, cache_bytes: int, ct_size: int = 2048) -> TileSchedule:
    """Group the iterations of two loops into tiles that fit the cache, in at most two wavefronts.

    A tile of wavefront 0 is a range of iterations of loop one, with those iterations of loop two in the same range that
    depend on nothing outside of it. Coarse tiles are halved until they move no more bytes than the cache holds
    (Equation 4) or have a single iteration; iterations of loop two that fit in neither half move to wavefront 1. Tiles
    of wavefront 1 have about equal numbers of nonzeros and are halved likewise. A wavefront with at least `threads`
    iterations has at least as many tiles. The result is deterministic.

    Args:
        threads: number of threads of the executor, and of the inspector.
        cache_bytes: fast memory per thread.
        ct_size: maximum number of iterations of a coarse tile.

    Raises:
        ValueError: an argument is below 1, or an iteration reads a row that is out of range.
        MemoryError: there is not enough memory for the inspection.

    Source: Algorithm 1. Readings and departures: docs/readings.md.
    """
    for name, value in (("threads", threads), ("cache_bytes", cache_bytes), ("ct_size", ct_size)):
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    threads = checked_threads(threads)
    start = time.perf_counter()
    n = loops.one.iterations
    first, second_ptr = np.empty(n + 1, np.int64), np.empty(2 * n + 1, np.int64)
    second, needed = np.empty(n, np.int32), np.empty(n, np.uint8)
    result = _TileResult(*(array.ctypes.data for array in (first, second, second_ptr, needed)))
    problem = _TileProblem(
        _Loop.of(loops.one), _Loop.of(loops.two), min(cache_bytes, UNLIMITED), min(ct_size, max(1, n)), threads)
    wanted = 8 * n + threads * (problem.one.columns + problem.two.columns)
    check_memory(_inspect()(ctypes.byref(problem), ctypes.byref(result)),
                 f"cut loops of {n} iterations into tiles", wanted)
    if result.fault_loop:
        reads = (loops.one if result.fault_loop == 1 else loops.two).reads
        raise ValueError(f"iteration {result.fault_iteration} of loop {('one', 'two')[result.fault_loop - 1]} reads a "
                         f"row that is outside 0 to {reads.extent - 1}")
    tiles = (result.tiles[0], result.tiles[1])
    first, second_ptr = first[: tiles[0] + 1].copy(), second_ptr[: sum(tiles) + 1].copy()
    return TileSchedule(tiles, first, second, second_ptr, needed, build_seconds=time.perf_counter() - start)


def coarse_tiles(iterations: int, *, threads: int, ct_size: int) -> int:
    """Count the coarse tiles: equally many for each thread, of at most `ct_size` iterations."""
    return min(iterations, threads * -(-iterations // (threads * ct_size)))


class _Loop(ctypes.Structure):
    """The struct Loop of kernels/cpu/tile_cost.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices")),
        *((name, ctypes.c_int64) for name in (
            "iterations", "columns", "rising", "iteration_bytes", "nonzero_bytes", "column_bytes")),
    )

    @classmethod
    def of(cls, loop: Loop) -> "_Loop":
        reads = loop.reads
        pointers = (None, None) if reads is None else (reads.indptr.ctypes.data, reads.indices.ctypes.data)
        return cls(*pointers, loop.iterations, 0 if reads is None else reads.extent, reads is None or reads.rising,
                   loop.iteration_bytes, loop.nonzero_bytes, loop.column_bytes)


class _TileProblem(ctypes.Structure):
    """The struct TileProblem of kernels/cpu/tile_schedule.cpp."""

    _fields_ = (
        *((name, _Loop) for name in ("one", "two")),
        *((name, ctypes.c_int64) for name in ("cache_bytes", "ct_size", "threads")),
    )


class _TileResult(ctypes.Structure):
    """The struct TileResult of kernels/cpu/tile_schedule.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "second", "second_ptr", "needed")),
        ("tiles", ctypes.c_int64 * 2),
        *((name, ctypes.c_int64) for name in ("fault_loop", "fault_iteration")),
    )


@cache
def _inspect() -> Any:
    function = compile_cpp(["cpu/tile_schedule.cpp"]).sparloom_tile_schedule
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p, ctypes.c_void_p]
    return function


def unfused_schedule(pattern: Pattern, *, threads: int) -> TileSchedule:
    """Schedule one loop after the other, in tiles of about equal work; `pattern` is that of A."""
    rows = np.linspace(0, pattern.cols, min(TILES_PER_THREAD * threads, pattern.cols) + 1).astype(np.int64)
    work = pattern.indptr + ROW_WORK * np.arange(pattern.rows + 1)
    shares = np.linspace(0, work[-1], min(TILES_PER_THREAD * threads, pattern.rows) + 1)
    twos = np.unique(np.searchsorted(work, shares))
    second_ptr = np.concatenate([np.zeros(rows.size - 1, dtype=np.int64), twos])
    return TileSchedule(
        tiles=(rows.size - 1, twos.size - 1), first=rows, second=np.arange(pattern.rows, dtype=np.int32),
        second_ptr=second_ptr, needed=_mark_columns(pattern))


def separated(schedule: TileSchedule, pattern: Pattern) -> TileSchedule:
    """Keep the tiles of a schedule but fuse nothing: loop one, barrier, loop two. Shows the effect of tiling alone."""
    fused, late = schedule.tiles
    second_ptr = np.concatenate([np.zeros(fused, np.int64), schedule.second_ptr])
    return replace(schedule, tiles=(fused, fused + late), second_ptr=second_ptr, needed=_mark_columns(pattern))


def _mark_columns(pattern: Pattern) -> np.ndarray:
    read = np.zeros(pattern.cols, dtype=np.uint8)
    read[pattern.indices] = 1
    return read


def check_schedule(schedule: TileSchedule, dependences: Reads | Pattern) -> None:
    """Check that the schedule respects all dependences, so that it computes what the unfused loops compute.

    Args:
        dependences: row j lists the iterations of loop one that iteration j of loop two reads.

    Raises:
        IllegalSchedule: an iteration is missing or duplicated, the loops have other lengths, a fused iteration reads
            from another tile, or `needed` does not mark what wavefront 1 reads.
    """
    _check_iterations(schedule)
    reads = Reads.of(dependences) if isinstance(dependences, Pattern) else dependences
    ones, twos = schedule.iterations
    if (twos, ones) != (reads.iterations, reads.extent):
        raise IllegalSchedule(f"a schedule of {ones} and {twos} iterations for dependences of {reads.extent} and "
                              f"{reads.iterations}: inspect the operand that is executed")
    readers = np.repeat(np.arange(twos), np.diff(reads.indptr))
    tile = _tile_of(schedule)
    late = tile >= schedule.tiles[0]
    owner = np.searchsorted(schedule.first, reads.indices, side="right") - 1
    outside = (tile[readers] != owner) & ~late[readers]
    if outside.any():
        edge = int(np.argmax(outside))
        raise IllegalSchedule(f"iteration {readers[edge]} of loop two, in tile {tile[readers[edge]]} of wavefront 0, "
                              f"reads iteration {reads.indices[edge]} of loop one, which is in tile {owner[edge]}: "
                              f"it belongs in wavefront 1")
    read = np.zeros(ones, dtype=np.uint8)
    read[reads.indices[late[readers]]] = 1
    wrong = read != schedule.needed
    if wrong.any():
        iteration = int(np.argmax(wrong))
        raise IllegalSchedule(f"needed[{iteration}] is {schedule.needed[iteration]}, but wavefront 1 reads it "
                              f"{'at least once' if read[iteration] else 'never'}")


def _check_iterations(schedule: TileSchedule) -> None:
    """Check that the tiles contain each iteration of both loops exactly once."""
    for name, extent in zip(("first", "second_ptr"), schedule.iterations, strict=True):
        bounds = getattr(schedule, name)
        if bounds[0] != 0 or bounds[-1] != extent or (bounds[1:] < bounds[:-1]).any():
            raise IllegalSchedule(f"{name} does not rise from 0 to {extent}")
    if (schedule.needed > 1).any():
        raise IllegalSchedule(f"needed[{int(np.argmax(schedule.needed > 1))}] is neither 0 nor 1")
    twos = schedule.iterations[1]
    outside = (schedule.second < 0) | (schedule.second >= twos)
    if outside.any():
        raise IllegalSchedule(f"second holds {schedule.second[outside][0]}: iterations are 0 to {twos - 1}")
    times = np.bincount(schedule.second, minlength=twos)
    if (times != 1).any():
        iteration = int(np.argmax(times != 1))
        raise IllegalSchedule(f"iteration {iteration} of loop two occurs {times[iteration]} times in second")


def _tile_of(schedule: TileSchedule) -> np.ndarray:
    """Return the tile of each iteration of loop two; tiles of wavefront 1 follow those of wavefront 0."""
    tile = np.empty(schedule.second.size, dtype=np.int64)
    tile[schedule.second] = np.repeat(np.arange(sum(schedule.tiles)), np.diff(schedule.second_ptr))
    return tile
