"""The inspector: Algorithm 1 of tile fusion, and orders of the iterations that let it fuse more of them.

An order is a permutation, (n,) int32, of the old numbers of the new iterations. It applies to both loops, and so to
rows and columns of A: rows of A, B and D move together.
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
    "MIN_FUSED_RATIO", "Reordered", "bandwidth_order", "coarse_tiles", "metis_order", "partition_order",
    "rescue_order", "schedule_tiles",
]

UNLIMITED = 2**62  # bytes
MIN_FUSED_RATIO = 1e-4  # matrices below are reordered (§5.1.2)


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



@dataclass(frozen=True, eq=False)
class Reordered:
    """A square pattern with its rows and columns reordered.

    Args:
        pattern: the reordered pattern, to be inspected.
        order: (rows,) int32, the old number of each new row.
        source: (nnz,) int64, the old position of the value of each nonzero.
    """

    pattern: Pattern
    order: np.ndarray
    source: np.ndarray

    @classmethod
    def of(cls, pattern: Pattern, order: np.ndarray) -> "Reordered":
        """Reorder a pattern.

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
        """Permute values (nnz,) of the old pattern to the new one."""
        return values[self.source]


def rescue_order(schedule: TileSchedule, pattern: Pattern) -> np.ndarray | None:
    """Return the order that the paper applies where almost nothing is fused, or None where it is not needed."""
    return bandwidth_order(pattern) if schedule.fused_ratio < MIN_FUSED_RATIO else None


def bandwidth_order(pattern: Pattern) -> np.ndarray:
    """Order by reverse Cuthill-McKee on A + A^T, which reduces the bandwidth.

    For three-dimensional meshes the bandwidth, about n^(2/3), soon exceeds a tile; see `partition_order`.

    Raises:
        ValueError: the pattern is not square.
    """
    _check_square(pattern)
    return locality_order(pattern)[0].astype(np.int32)


def partition_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order by recursive bisection of the graph of A + A^T, so that equal ranges have few neighbours outside.

    The cuts fall at the bounds v n / parts of the coarse tiles and of their halves. Bisection is geometric: the
    distances to ten pivots are the coordinates of a vertex, and cuts are perpendicular to the direction of greatest
    spread. It suits meshes and other graphs whose distances vary.

    Args:
        parts: number of tiles of wavefront 0, see `coarse_tiles`.

    Raises:
        ValueError: the pattern is not square, or `parts` is below 1.

    Source: Harel and Koren, Graph Drawing by High-Dimensional Embedding (2002), for the embedding.
    """
    parts = _checked_parts(parts, pattern)
    both = _undirected(pattern)
    indptr, indices = both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False)
    order = np.empty(pattern.rows, dtype=np.int32)
    problem = _PartitionProblem(indptr.ctypes.data, indices.ctypes.data, pattern.rows, parts, order.ctypes.data)
    check_memory(_bisect()(ctypes.byref(problem)), f"number {pattern.rows} vertices", 72 * pattern.rows)
    return order


def metis_order(pattern: Pattern, *, parts: int) -> np.ndarray:
    """Order by the parts of a METIS partition of the graph of A + A^T; the order within a part is kept.

    METIS minimises cut edges, so it also suits graphs of small diameter. Its parts are only about equal, so tile bounds
    differ from theirs.

    Args:
        parts: as for `partition_order`.

    Raises:
        ValueError: as `partition_order`.
        Unsupported: pymetis is not installed.
    """
    parts = _checked_parts(parts, pattern)
    try:
        import pymetis
    except ImportError as error:
        raise Unsupported("pymetis is not installed: install sparloom[peers] or take partition_order") from error
    if parts == 1:
        return np.arange(pattern.rows, dtype=np.int32)
    both = _undirected(pattern)
    both.setdiag(0)
    both.eliminate_zeros()
    _, part = pymetis.part_graph(parts, pymetis.CSRAdjacency(both.indptr, both.indices))
    return np.argsort(part, kind="stable").astype(np.int32)


def _undirected(pattern: Pattern) -> scipy.sparse.csr_array:
    """Return the graph of A + A^T, with positive weights."""
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
