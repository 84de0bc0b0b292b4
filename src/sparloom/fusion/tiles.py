"""The inspector: Algorithm 1 of tile fusion, compiled."""

import ctypes
import time
from functools import cache
from typing import Any

import numpy as np

from sparloom.fusion.loops import FusedLoops, Loop
from sparloom.fusion.schedule import TileSchedule
from sparloom.jit import check_memory, compile_cpp
from sparloom.measure import checked_threads

__all__ = ["coarse_tiles", "schedule_tiles"]

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
    result = _Result(*(array.ctypes.data for array in (first, second, second_ptr, needed)))
    problem = _Problem(
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


class _Problem(ctypes.Structure):
    """The struct TileProblem of kernels/cpu/tile_schedule.cpp."""

    _fields_ = (
        *((name, _Loop) for name in ("one", "two")),
        *((name, ctypes.c_int64) for name in ("cache_bytes", "ct_size", "threads")),
    )


class _Result(ctypes.Structure):
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
