"""The inspector: Algorithm 1 of tile fusion, compiled.

Orders of the iterations that bring those that depend on each other into one tile.

An order is a permutation, (n,) int32: the old number of each new iteration. It applies to both loops, that is to rows
and columns of A: rows of A, B and D move together.
"""

import ctypes
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse

from sparloom.errors import Unsupported
from sparloom.fusion.schedule import FusedLoops, Loop, TileSchedule
from sparloom.jit import check_memory, compile_cpp
from sparloom.measure import checked_threads
from sparloom.sparse import Pattern, locality_order

__all__ = [
    "LEAST_FUSED_RATIO", "Reordered", "bandwidth_order", "coarse_tiles", "metis_order", "partition_order",
    "rescue_order", "schedule_tiles",
]

UNLIMITED = 2**62  # bytes


def schedule_tiles(loops: FusedLoops, *, threads: int, cache_bytes: int, ct_size: int = 2048) -> TileSchedule:
    """Group the iterations of two loops into tiles that fit the cache, in two wavefronts at most.

    A tile of wavefront 0 is a range of iterations of loop one, together with those iterations of loop two of the same
    range that depend on nothing outside of it. Coarse ranges are halved until they move no more than the cache holds
    (Equation 4) or are a single iteration; what the halves do not contain is left to wavefront 1. Its tiles have about
    equally many nonzeros and are halved likewise. A wavefront that has `threads` iterations has as many tiles. The same
    arguments give the same schedule.

    Args:
        threads: of the executor; the inspector uses as many.
        cache_bytes: fast memory of one thread.
        ct_size: most iterations of a tile before it is split.

    Raises:
        ValueError: an argument is below 1, or an iteration reads a row that is out of range.
        MemoryError: there is no memory to inspect the loops.

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
    """Count the tiles before any is split: as many for every thread, of at most `ct_size` iterations."""
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


LEAST_FUSED_RATIO = 1e-4  # §5.1.2: matrices below are reordered


@dataclass(frozen=True, eq=False)
class Reordered:
    """A square pattern with rows and columns in another order.

    Args:
        pattern: the reordered pattern; this is what is inspected.
        order: (rows,) int32, the old number of each new row.
        source: (nnz,) int64, where the value of each nonzero was: new values need no new inspection.
    """

    pattern: Pattern
    order: np.ndarray
    source: np.ndarray

    @classmethod
    def of(cls, pattern: Pattern, order: np.ndarray) -> "Reordered":
        """Apply an order.

        Raises:
            ValueError: the pattern is not square, or `order` is not a permutation of its rows.
        """
        _check_square(pattern)
        order = np.asarray(order)
        if order.shape != (pattern.rows,) or not np.array_equal(np.sort(order), np.arange(pattern.rows)):
            raise ValueError(f"an order of shape {order.shape} is not a permutation of 0 to {pattern.rows - 1}")
        number = np.empty(pattern.rows, dtype=np.int64)
        number[order] = np.arange(pattern.rows)
        rows, cols = number[pattern.row_ids()], number[pattern.indices]
        source = np.lexsort((cols, rows))
        indptr = np.concatenate([[0], np.cumsum(pattern.row_lengths()[order])])
        return cls(Pattern(pattern.shape, indptr, cols[source]), order.astype(np.int32), source)

    def values(self, values: np.ndarray) -> np.ndarray:
        """Bring values, (nnz,) in the order of the old pattern, into that of the new one."""
        return values[self.source]


def rescue_order(schedule: TileSchedule, pattern: Pattern) -> np.ndarray | None:
    """Give the order that the paper applies where next to nothing is fused; None where something is."""
    return bandwidth_order(pattern) if schedule.fused_ratio < LEAST_FUSED_RATIO else None


def bandwidth_order(pattern: Pattern) -> np.ndarray:
    """Order by reverse Cuthill-McKee on A + A^T: neighbours get near numbers.

    In three dimensions the bandwidth, about n^(2/3), soon exceeds a tile: see `partition_order`.

    Raises:
        ValueError: the pattern is not square.
    """
    _check_square(pattern)
    return locality_order(pattern)[0].astype(np.int32)


def partition_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order by recursive bisection of the graph of A + A^T, so that equal ranges have few neighbours outside.

    The cuts fall at the bounds v n / parts of the scheduler's coarse tiles and of their halves. Bisection is
    geometric: vertices are placed by their distances to ten pivots and cut across the direction of greatest spread, so
    it serves meshes, and other graphs whose distances vary.

    Args:
        parts: tiles of wavefront 0, see `coarse_tiles`.

    Raises:
        ValueError: the pattern is not square, or there are no parts.

    Source: the embedding is that of Harel and Koren, Graph Drawing by High-Dimensional Embedding (2002).
    """
    parts = _checked_parts(parts, pattern)
    both = _either_way(pattern)
    indptr, indices = both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False)
    order = np.empty(pattern.rows, dtype=np.int32)
    problem = _PartitionProblem(indptr.ctypes.data, indices.ctypes.data, pattern.rows, parts, order.ctypes.data)
    check_memory(_bisect()(ctypes.byref(problem)), f"number {pattern.rows} vertices", 72 * pattern.rows)
    return order


def metis_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order by the parts that METIS makes of the graph of A + A^T; within a part the order stays.

    It looks at edges where `partition_order` looks at distances, so it serves graphs of small diameter too. Its parts
    are only about equal: bounds of tiles lie beside theirs.

    Args:
        parts: as of `partition_order`.

    Raises:
        ValueError: as by `partition_order`.
        Unsupported: pymetis is not installed.
    """
    parts = _checked_parts(parts, pattern)
    try:
        import pymetis
    except ImportError as error:
        raise Unsupported("pymetis is not installed: install sparloom[peers] or take partition_order") from error
    if parts == 1:
        return np.arange(pattern.rows, dtype=np.int32)
    both = _either_way(pattern)
    both.setdiag(0)
    both.eliminate_zeros()
    _, part = pymetis.part_graph(parts, pymetis.CSRAdjacency(both.indptr, both.indices))
    return np.argsort(part, kind="stable").astype(np.int32)


def _either_way(pattern: Pattern) -> scipy.sparse.csr_array:
    """Make the graph of A + A^T, with weights above 0."""
    ones = pattern.to_scipy()
    return scipy.sparse.csr_array(ones + ones.T)


def _checked_parts(parts: int, pattern: Pattern) -> int:
    _check_square(pattern)
    if parts < 1:
        raise ValueError(f"{parts} parts: there must be at least 1")
    return min(parts, max(1, pattern.rows))


def _check_square(pattern: Pattern) -> None:
    if pattern.rows != pattern.cols:
        raise ValueError(f"a pattern of {pattern.rows} x {pattern.cols}: only a square one has an order of both")


class _PartitionProblem(ctypes.Structure):
    """The struct PartitionProblem of kernels/cpu/partition_order.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices")),
        *((name, ctypes.c_int64) for name in ("n", "parts")),
        ("order", ctypes.c_void_p),
    )


@cache
def _bisect() -> Any:
    function = compile_cpp(["cpu/partition_order.cpp"]).sparloom_partition_order
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    return function
