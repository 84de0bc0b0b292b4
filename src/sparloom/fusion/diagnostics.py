"""The average time of a memory access of a schedule, in simulated caches: where processors count nothing for us.

Threads that stay on their processors while something is measured.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.fusion.executor import Pair, Variant
from sparloom.fusion.schedule import TileSchedule
from sparloom.jit import check_memory, compile_cpp
from sparloom.measure import cache_levels
from sparloom.sparse import Pattern

__all__ = ["CacheLevel", "access_cycles", "machine_levels", "mean_cycles", "pinned"]

LINE = 64  # bytes


@dataclass(frozen=True)
class CacheLevel:
    """A cache of one thread, the last of all: its size and how long a read of it takes."""

    bytes: int
    ways: int
    cycles: float


MEMORY_CYCLES = 300.0


def machine_levels(threads: int) -> tuple[CacheLevel, ...]:
    """Take the sizes of this machine's three levels, with ways and cycles of a recent processor.

    Args:
        threads: whose shares of the last level make up one.
    """
    sizes = {1: 48 << 10, 2: 1 << 20, 3: 2 << 20} | cache_levels()
    return (CacheLevel(sizes[1], 12, 4), CacheLevel(sizes[2], 16, 14), CacheLevel(threads * sizes[3], 16, 50))


def access_cycles(
    op: Pair, pattern: Pattern, schedule: TileSchedule, *, inner: int, width: int, threads: int, variant: Variant,
    levels: Sequence[CacheLevel], memory_cycles: float = MEMORY_CYCLES,
) -> float:
    """Average the cycles of all reads of lines that a schedule makes, float32: hits at each level times its cycles.

    Sequences of reads are those of kernels/cpu/cache_walk.cpp. What prefetchers and out-of-order execution hide is not
    taken off, so only ratios between schedules mean something.

    Args:
        pattern: of A, and of B where it is sparse, in the order of the iterations.
        inner: columns of B where it is dense.
        width: columns of D.
        levels: two of each thread, then one of all; see `machine_levels`.

    Returns:
        NaN where nothing is read.

    Raises:
        Unsupported: the operation is spmm_gemm.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.2.2. Departure: simulated, not counted.
    """
    if op.name == "spmm_gemm":
        raise Unsupported("access_cycles of spmm_gemm: give gemm_spmm or spmm_spmm")
    sparse = op.name == "spmm_spmm"
    rows = _Rows(pattern.indptr.ctypes.data, pattern.indices.ctypes.data)
    second = np.ascontiguousarray(schedule.second)
    walk = _Walk(
        *(array.ctypes.data for array in (schedule.first, second, schedule.second_ptr, schedule.needed)),
        rows, rows if sparse else _Rows(None, None), schedule.tiles, threads, pattern.rows, pattern.cols,
        _lines(inner), _lines(width), tuple(level.bytes // (LINE * level.ways) for level in levels),
        tuple(level.ways for level in levels), variant.local, variant.stream)
    wanted = sum(4 * level.bytes // LINE for level in levels) * threads
    check_memory(_walk()(ctypes.byref(walk)), f"simulate {len(levels)} levels of caches", wanted)
    return mean_cycles(walk.reads[:], levels, memory_cycles=memory_cycles)


def mean_cycles(
    reads: Sequence[int], levels: Sequence[CacheLevel], *, memory_cycles: float = MEMORY_CYCLES
) -> float:
    """Average the cycles of reads, given how many each level and the memory served; NaN where there are none."""
    cycles = np.array([*(level.cycles for level in levels), memory_cycles])
    counts = np.array(reads, dtype=np.float64)
    return float(counts @ cycles / counts.sum()) if counts.sum() else float("nan")


def _lines(columns: int) -> int:
    return -(-columns * 4 // LINE)


class _Rows(ctypes.Structure):
    """The struct WalkRows of kernels/cpu/cache_walk.cpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("indptr", "indices"))


class _Walk(ctypes.Structure):
    """The struct Walk of kernels/cpu/cache_walk.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "second", "second_ptr", "needed")),
        *((name, _Rows) for name in ("a", "b")), ("tiles", ctypes.c_int64 * 2),
        *((name, ctypes.c_int64) for name in ("threads", "ones", "right_rows", "inner_lines", "row_lines")),
        *((name, ctypes.c_int64 * 3) for name in ("sets", "ways")),
        *((name, ctypes.c_int64) for name in ("local", "stream")), ("reads", ctypes.c_int64 * 4),
    )


@cache
def _walk() -> Any:
    function = compile_cpp(["cpu/cache_walk.cpp"]).sparloom_cache_walk
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    return function


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Bind the threads of compiled code, the calling one included, each to a processor, close to each other.

    Threads that others start inside inherit the processor of their parent. Without effect but on Linux.

    Raises:
        ValueError: more threads than processors that this process may use.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    cpus = np.array(sorted(os.sched_getaffinity(0)), dtype=np.int32)
    if not 1 <= threads <= cpus.size:
        raise ValueError(f"{threads} threads on {cpus.size} processors: give between 1 and {cpus.size}")
    pin = compile_cpp(["cpu/pin.cpp"]).sparloom_pin
    pin.restype, pin.argtypes = None, [ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    pin(threads, cpus.ctypes.data, cpus.size, 0)
    try:
        yield
    finally:
        pin(threads, cpus.ctypes.data, cpus.size, 1)
