"""Comparison of fused products: baselines of the paper, a cache simulator, load balance, thread pinning.

Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.1.4 and Listing 7 (baselines), §5.2.2 (memory
access time and load balance). How the baselines cut tiles and keep dependences follows arXiv 2407.00243. All of them
use the row kernels and compiler flags of `Executor`.
"""

import ctypes
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from sparloom.errors import Unsupported
from sparloom.fusion.executor import (
    BoundLoops,
    CsrRows,
    FusedArguments,
    Pair,
    Variant,
    Workspace,
    check_operands,
    fill_arguments,
    fused_library,
)
from sparloom.fusion.schedule import TileSchedule
from sparloom.jit import NativeCall, address, check_memory, compile_cpp
from sparloom.measure import cache_levels
from sparloom.ops import GemmSpmm, Operands, SpmmSpmm
from sparloom.sparse import Pattern

LINE_BYTES = 64
MEMORY_CYCLES = 300.0


def atomic_tiling(
    op: GemmSpmm | SpmmSpmm, operands: Operands, result: np.ndarray, *, threads: int, tiles: int,
) -> NativeCall:
    """Bind sparse tiling: equal tiles of loop one, each of which adds its share to every row of D that needs it.

    Rows to which several tiles contribute are added to atomically. D1 stays in thread-local buffers. The inspector runs
    here, so the call does not include its time.

    Raises:
        Unsupported: the operation has addends.
    """
    if op.name == "spmm_spmm" and op.addends:
        raise Unsupported("atomic tiling of a product with addends: several tiles would add them, use Executor")
    _check(op, operands, result)
    pattern = operands.matrix.pattern
    first = _equal_parts(pattern.cols, tiles)
    tile = np.searchsorted(first, pattern.indices, side="right") - 1
    row = pattern.row_ids()
    nonzeros = np.lexsort((row, tile))  # by tile, then by row
    begins = np.flatnonzero((np.diff(tile[nonzeros], prepend=-1) != 0) | (np.diff(row[nonzeros], prepend=-1) != 0))
    owner, entry = tile[nonzeros[begins]], row[nonzeros[begins]]
    parts = np.bincount(entry, minlength=pattern.rows)  # tiles that contribute to each row
    owner, entry, begins, ends = _with_empty_rows(owner, entry, begins, pattern, parts)
    crossing = (parts > 1)[entry].astype(np.uint8)
    order = np.lexsort((crossing, owner))
    write, crossing = np.ascontiguousarray(entry[order], dtype=np.int32), crossing[order]
    second_ptr = np.searchsorted(owner[order], np.arange(first.size)).astype(np.int64)
    schedule = TileSchedule((first.size - 1, 0), first, np.arange(write.size, dtype=np.int32), second_ptr,
                            np.zeros(pattern.cols, dtype=np.uint8))
    a = CsrRows(begins[order], ends[order], pattern.indices[nonzeros], operands.matrix.values[nonzeros])
    loops = BoundLoops(schedule, threads, Variant(local=True), a, write=write)
    pair, kept = fill_arguments(op, operands, result, loops, Workspace())
    shared = np.flatnonzero(parts > 1).astype(np.int32)
    arguments = _AtomicArguments(pair=pair, crossing=address(crossing, np.uint8), shared=address(shared, np.int32),
                                 shared_rows=shared.size)
    return _call(f"{op.name}_atomic", operands, arguments, (*kept, crossing, shared))


def overlapped_tiling(
    op: GemmSpmm | SpmmSpmm, operands: Operands, result: np.ndarray, *, threads: int, tiles: int,
) -> NativeCall:
    """Bind overlapped tiling: equal tiles of loop two, each of which computes all rows of D1 that it reads.

    This communication-avoiding scheme needs no barrier and no atomics, but computes shared rows several times. The
    inspector runs here, so the call does not include its time.
    """
    _check(op, operands, result)
    pattern = operands.matrix.pattern
    borders = _equal_parts(pattern.rows, tiles)
    read, columns, first = [], np.empty_like(pattern.indices), [0]
    for begin, end in zip(pattern.indptr[borders[:-1]], pattern.indptr[borders[1:]], strict=True):
        rows, local = np.unique(pattern.indices[begin:end], return_inverse=True)
        columns[begin:end] = local + first[-1]
        read.append(rows)
        first.append(first[-1] + rows.size)
    schedule = TileSchedule(
        (borders.size - 1, 0), np.array(first, dtype=np.int64), np.arange(pattern.rows, dtype=np.int32), borders,
        np.zeros(first[-1], dtype=np.uint8))
    a = CsrRows.of(operands.matrix, None, columns)
    loops = BoundLoops(schedule, threads, Variant(local=True), a, read=np.concatenate([np.empty(0, np.int32), *read]))
    arguments, kept = fill_arguments(op, operands, result, loops, Workspace())
    return _call(op.name, operands, arguments, kept)


def fused_gemv(
    op: GemmSpmm, operands: Operands, result: np.ndarray, *, threads: int,
    kind: Literal["listing", "gemv", "blas_gemv"],
) -> NativeCall:
    """Bind GeMM-SpMM as tensor compilers fuse it: each nonzero of A multiplies a row of B by C (Listing 7).

    Args:
        kind: "listing", the loops as generated; "gemv", with the row of D in registers; "blas_gemv", BLAS for the two
            inner loops.

    Raises:
        Unsupported: C is transposed, or the operation is not gemm_spmm.
    """
    if op.name != "gemm_spmm" or op.c_transposed:
        raise Unsupported(f"fused GeMV of {op}: it is for gemm_spmm with C as it is")
    _check(op, operands, result)
    schedule = TileSchedule((0, 0), np.zeros(1, np.int64), np.empty(0, np.int32), np.zeros(1, np.int64),
                            np.empty(0, np.uint8))
    loops = BoundLoops(schedule, threads, Variant(), CsrRows.of(operands.matrix))
    arguments, kept = fill_arguments(op, operands, result, loops, Workspace())
    assert arguments.rows == operands.matrix.pattern.rows
    if kind == "blas_gemv":
        arguments.blas = _blas_gemv(operands.matrix.dtype)
    return _call(f"gemm_spmm_{kind}", operands, arguments, kept)


def _blas_gemv(dtype: np.dtype) -> int:
    """Return the address of SGEMV or DGEMV of SciPy's BLAS."""
    name = {"float32": "sgemv", "float64": "dgemv"}[dtype.name]
    capsule = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__[name]
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype, python.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule))


class _AtomicArguments(ctypes.Structure):
    """The struct Atomic of kernels/cpu/fused_baselines.hpp."""

    _fields_ = (
        ("pair", FusedArguments),
        *((name, ctypes.c_void_p) for name in ("crossing", "shared")),
        ("shared_rows", ctypes.c_int64),
    )


def _call(kernel: str, operands: Operands, arguments: ctypes.Structure, kept: Sequence[np.ndarray]) -> NativeCall:
    return NativeCall(getattr(fused_library(operands.matrix.dtype), f"sparloom_{kernel}"), arguments, kept=kept)


def _check(op: Pair, operands: Operands, result: np.ndarray) -> None:
    if op.name == "spmm_gemm":
        raise Unsupported("spmm_gemm: its loops fuse without overlap and without atomics, use Executor")
    check_operands(op, operands, result)


def _equal_parts(extent: int, tiles: int) -> np.ndarray:
    """Return the bounds, int64, of at most `tiles` equal parts of an extent."""
    return np.linspace(0, extent, max(1, min(tiles, extent)) + 1).astype(np.int64)


def _with_empty_rows(
    owner: np.ndarray, entry: np.ndarray, begins: np.ndarray, pattern: Pattern, parts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Assign rows without nonzeros to tile 0, which writes zeros; return owner, row, begin and end of all entries."""
    empty = np.flatnonzero(parts == 0)
    ends = np.append(begins[1:], pattern.nnz) if begins.size else begins
    zeros = np.zeros(empty.size, dtype=np.int64)
    joined = ((zeros, owner), (empty, entry), (zeros, begins), (zeros, ends))
    return tuple(np.concatenate(pair).astype(np.int64) for pair in joined)


@dataclass(frozen=True)
class CacheLevel:
    """A simulated cache and the cycles that a hit takes."""

    bytes: int
    ways: int
    cycles: float


def machine_levels(threads: int) -> tuple[CacheLevel, ...]:
    """Return three levels with the sizes of this machine's caches, and ways and cycles of a recent processor.

    The shares of all threads add up to the last level.
    """
    sizes = {1: 48 << 10, 2: 1 << 20, 3: 2 << 20} | cache_levels()
    return (CacheLevel(sizes[1], 12, 4), CacheLevel(sizes[2], 16, 14), CacheLevel(threads * sizes[3], 16, 50))


def access_cycles(
    op: Pair, pattern: Pattern, schedule: TileSchedule, *, inner: int, width: int, threads: int, variant: Variant,
    levels: Sequence[CacheLevel],
) -> float:
    """Simulate the average cycles of the cache-line reads of a schedule, for float32; NaN where nothing is read.

    kernels/cpu/cache_walk.cpp defines the sequence of reads. Prefetching and out-of-order execution are not modelled,
    so only ratios between schedules are meaningful.

    Args:
        pattern: pattern of A, and of B where B is sparse, in the order of the iterations.
        inner, width: columns of B where B is dense, and of D.
        levels: two private levels and one shared by all threads; see `machine_levels`.

    Departure: the paper counts accesses with hardware counters, which virtual machines often lack.
    """
    if op.name == "spmm_gemm":
        raise Unsupported("access_cycles of spmm_gemm: give gemm_spmm or spmm_spmm")
    sparse = op.name == "spmm_spmm"
    rows = _WalkRows(pattern.indptr.ctypes.data, pattern.indices.ctypes.data)
    second = np.ascontiguousarray(schedule.second)
    walk = _Walk(
        *(array.ctypes.data for array in (schedule.first, second, schedule.second_ptr, schedule.needed)),
        rows, rows if sparse else _WalkRows(None, None), schedule.tiles, threads, pattern.rows, pattern.cols,
        _lines(inner), _lines(width), tuple(level.bytes // (LINE_BYTES * level.ways) for level in levels),
        tuple(level.ways for level in levels), variant.local, variant.stream)
    wanted = sum(4 * level.bytes // LINE_BYTES for level in levels) * threads
    check_memory(_cache_walk()(ctypes.byref(walk)), f"simulate {len(levels)} levels of caches", wanted)
    counts, cycles = np.array(walk.reads[:]), [*(level.cycles for level in levels), MEMORY_CYCLES]
    return float(counts @ cycles / counts.sum()) if counts.sum() else float("nan")


def _lines(columns: int) -> int:
    return -(-columns * 4 // LINE_BYTES)


class _WalkRows(ctypes.Structure):
    """The struct WalkRows of kernels/cpu/cache_walk.cpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("indptr", "indices"))


class _Walk(ctypes.Structure):
    """The struct Walk of kernels/cpu/cache_walk.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "second", "second_ptr", "needed")),
        *((name, _WalkRows) for name in ("a", "b")), ("tiles", ctypes.c_int64 * 2),
        *((name, ctypes.c_int64) for name in ("threads", "ones", "right_rows", "inner_lines", "row_lines")),
        *((name, ctypes.c_int64 * 3) for name in ("sets", "ways")),
        *((name, ctypes.c_int64) for name in ("local", "stream")), ("reads", ctypes.c_int64 * 4),
    )


@cache
def _cache_walk() -> Any:
    function = compile_cpp(["cpu/cache_walk.cpp"]).sparloom_cache_walk
    function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
    return function


def potential_gain(seconds: np.ndarray) -> float:
    """Return the mean difference between the slowest thread and each thread, summed over wavefronts (§5.2.2).

    A call would save this time if the work of each wavefront were shared evenly; see `Executor.seconds`.
    """
    return float((seconds.max(axis=1, keepdims=True) - seconds).mean(axis=1).sum())


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Pin the OpenMP threads of compiled code, including the calling one, each to a processor, close to each other.

    Threads that other libraries start inside inherit the processor of their parent. No effect outside of Linux.

    Raises:
        ValueError: more threads than processors available to this process.
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
