"""Bound the seconds of a sparse operation from below: arithmetic at its peak, and what each cache must pass on.

The bound is the longest of the flops over the peak and, for each cache and for the memory, the bytes that the caches
before it let through over the rate at which it supplies them (Williams et al., "Roofline", CACM 2009, with the traffic
of LRU caches in place of the least traffic). The model:

    a call is one of many on the same arrays, so a cache begins with what the last call left
    A is processed in the stored order; its indices, values and row pointers are read once
    for every nonzero a dense row is read, as a whole: of B (SpMM), of C (SDDMM), or of K and V (attention)
    the other dense operand, B of SDDMM or Q of attention, is read once: a row stays in registers while its turn lasts
    the result is written once, past the caches unless everything fits into them, and nothing is read for that
    caches are LRU and exclusive (none holds data of a nearer one), so their sizes add up
    private caches see the rows of one thread, a contiguous share with about equally many nonzeros
    the last cache is shared and sees all rows in the stored order, as if threads worked next to each other

Every idealisation lowers the bound. Only another order of rows, or a better replacement policy than LRU, can move fewer
bytes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from sparloom.errors import Unsupported
from sparloom.jit import address, aligned, check_memory, compile_cpp
from sparloom.measure import cache_capacities, checked_threads, vector_lanes
from sparloom.ops import Op
from sparloom.sparse import Pattern

INDEX_BYTES, POINTER_BYTES = 4, 8
BLOCK = 1 << 20  # nonzeros at once
MEMORY = "memory"
MULTIPLY, READ, COPY = range(3)  # kinds of kernels/cpu/peak_rates.cpp
UNROLLED = 16  # vectors that its loops take at a time
ROUNDS = 10
PASS_BYTES = 1 << 27  # that a timed call moves
MULTIPLICATIONS = 400_000  # times 16 vectors in a timed call
MEMORY_FACTOR, MAX_STREAM_BYTES = 8, 1 << 29  # a stream through memory is so many times as large as the caches


@dataclass(frozen=True)
class Supply:
    """A cache, or the memory, that supplies what the caches before it do not hold.

    Args:
        name: "L2", "L3", ... or "memory".
        rate: bytes per second that it gives to all threads together.
        both_ways: bytes per second, read and written together.
        held: bytes of all caches before it; of those of one thread where they are private.
        private: whether the caches before it are private to a core.
    """

    name: str
    rate: float
    both_ways: float
    held: int
    private: bool


@dataclass(frozen=True)
class Roof:
    """Peak rates of some threads of this machine.

    Args:
        flops: of float32 per second, two for a multiplication with an addition.
        supplies: from the nearest to the memory.
    """

    threads: int
    flops: float
    supplies: tuple[Supply, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Roof:
        """Read the values of `dataclasses.asdict`."""
        return cls(value["threads"], value["flops"], tuple(Supply(**each) for each in value["supplies"]))


@dataclass(frozen=True)
class Bound:
    """Least seconds of one call.

    Args:
        seconds: the longest of `parts`.
        parts: seconds of the "flops" at their peak, and of the bytes from each supply, by its name.
        compulsory_seconds: of all operands and the result, moved once from or to memory.
    """

    seconds: float
    parts: Mapping[str, float]
    compulsory_seconds: float

    @property
    def limit(self) -> str:
        """Name the part that takes longest."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True)
class ReuseDistances:
    """LRU reuse distances of the nonzeros of consecutive rows that are processed repeatedly.

    Args:
        columns: (nonzeros,) int32, distinct columns since the last access to the column of each, itself included.
        nonzeros: (nonzeros,) int32, accesses since.
        begun: (nonzeros,) int32, rows begun since; empty rows do not count.
        rows, filled_rows, distinct: number of rows, of those with nonzeros, and of columns with nonzeros.
    """

    columns: np.ndarray
    nonzeros: np.ndarray
    begun: np.ndarray
    rows: int
    filled_rows: int
    distinct: int

    @classmethod
    def of(cls, pattern: Pattern, rows: slice = slice(None)) -> ReuseDistances:
        """Count exactly, in a time that grows with the nonzeros times the logarithm of the columns.

        Args:
            rows: consecutive ones, as if the pattern had no others.

        Raises:
            Unsupported: the pattern has 2**30 columns or more, or 2**31 nonzeros or more.
        """
        if pattern.cols >= 1 << 30 or pattern.nnz >= 1 << 31:
            raise Unsupported(f"reuse distances of {pattern.cols} columns and {pattern.nnz} nonzeros: both are counted "
                              "in 32 bits, give fewer than 2**30 and 2**31")
        start, stop, _ = rows.indices(pattern.rows)
        indptr = pattern.indptr[start : stop + 1]
        indices = np.ascontiguousarray(pattern.indices[indptr[0] : indptr[-1]])
        lengths = np.diff(indptr)
        filled = lengths[lengths > 0]
        row = np.repeat(np.arange(filled.size, dtype=np.int32), filled)
        columns, nonzeros, begun = (np.empty(indices.size, np.int32) for _ in range(3))
        problem = _ReuseDistances(
            address(indices, np.int32), address(row, np.int32), indices.size, pattern.cols, filled.size,
            *(address(array, np.int32, written=True) for array in (columns, nonzeros, begun)))
        check_memory(_library("reuse_distance").sparloom_reuse_distances(ctypes.byref(problem)),
                     f"count the reuse distances of {pattern.cols} columns", 28 * pattern.cols)
        return cls(columns, nonzeros, begun, lengths.size, filled.size, int(np.unique(indices).size))

    def misses(self, held: int, *, gathered: int, nonzero: int = 0, row: int = 0) -> int:
        """Count the accesses that an LRU cache of `held` bytes does not serve.

        Args:
            gathered: bytes of what is read for a column.
            nonzero, row: bytes that are read once for every nonzero, and for every row that has any.
        """
        missed = 0
        for begin in range(0, self.columns.size, BLOCK):
            block = slice(begin, begin + BLOCK)
            met = gathered * self.columns[block].astype(np.int64)
            met += nonzero * self.nonzeros[block].astype(np.int64) + row * self.begun[block].astype(np.int64)
            missed += int(np.count_nonzero(met > held))
        return missed


@dataclass(frozen=True)
class PatternReuse:
    """Reuse distances of a pattern, for any operation and width: of all rows, and of the share of each thread."""

    pattern: Pattern
    whole: ReuseDistances
    shares: tuple[ReuseDistances, ...]

    @classmethod
    def of(cls, pattern: Pattern, threads: int) -> PatternReuse:
        """Cut the rows into consecutive shares with about equally many nonzeros, and count."""
        cuts = np.searchsorted(pattern.indptr, np.arange(1, threads) * pattern.nnz / threads)
        ends = [0, *(int(cut) for cut in cuts), pattern.rows]
        whole = ReuseDistances.of(pattern)
        return cls(pattern, whole, (whole,) if threads == 1 else tuple(
            ReuseDistances.of(pattern, slice(begin, end)) for begin, end in pairwise(ends)))


def bound(
    op: Op, pattern: Pattern | PatternReuse, width: int, *, roof: Roof, dtype: DTypeLike = np.float32,
) -> Bound:
    """Bound the seconds of SpMM, SDDMM or attention on the threads of a roof from below, by the model of this module.

    Args:
        pattern: of A; with its reuse distances where they are known.
        width: columns of the dense operands, all heads together.
        dtype: of the dense operands, of the values of A and of the result; flops of float64 count twice.

    Raises:
        Unsupported: there is no model of the operation.
    """
    reuse = pattern if isinstance(pattern, PatternReuse) else PatternReuse.of(pattern, roof.threads)
    size = np.dtype(dtype).itemsize
    moved = _moved(op, width, size)
    parts = {"flops": op.work(reuse.pattern, width).flops * max(1, size // 4) / roof.flops}
    for supply in roof.supplies:
        passed = [moved.beyond(supply.held, rows) for rows in (reuse.shares if supply.private else (reuse.whole,))]
        read, written = (sum(each) for each in zip(*passed, strict=True))
        parts[supply.name] = max(read / supply.rate, (read + written) / supply.both_ways)
    read, written = moved.once(reuse.whole)
    memory = roof.supplies[-1]
    return Bound(max(parts.values()), parts, max(read / memory.rate, (read + written) / memory.both_ways))


@dataclass(frozen=True)
class _Moved:
    """Bytes that an operation reads for a column, reads once, and writes once.

    Args:
        gathered: for an access to a column.
        nonzero, filled_row, row: read once for each nonzero, row with nonzeros, and row.
        result_nonzero, result_row: written for each nonzero, and row.
    """

    gathered: int
    nonzero: int
    filled_row: int = 0
    row: int = POINTER_BYTES
    result_nonzero: int = 0
    result_row: int = 0

    def once(self, reuse: ReuseDistances) -> tuple[int, int]:
        """Count the bytes that are read and written if each moves once."""
        return (self.gathered * reuse.distinct + self._streamed(reuse),
                self.result_nonzero * reuse.columns.size + self.result_row * reuse.rows)

    def beyond(self, held: int, reuse: ReuseDistances) -> tuple[int, int]:
        """Count the bytes read from and written to what is beyond caches of `held` bytes."""
        read, written = self.once(reuse)
        if read + written <= held:
            return 0, 0
        streamed = self._streamed(reuse) if read > held else 0
        missed = reuse.misses(held, gathered=self.gathered, nonzero=self.nonzero, row=self.filled_row + self.row)
        return self.gathered * missed + streamed, written

    def _streamed(self, reuse: ReuseDistances) -> int:
        return self.nonzero * reuse.columns.size + self.filled_row * reuse.filled_rows + self.row * reuse.rows


def _moved(op: Op, width: int, size: int) -> _Moved:
    dense = width * size
    if op.name in ("spmm", "spmm_mean", "spmm_max"):
        return _Moved(gathered=dense, nonzero=INDEX_BYTES + size, result_row=dense)
    if op.name == "sddmm":
        return _Moved(gathered=dense, nonzero=INDEX_BYTES + size, filled_row=dense, result_nonzero=size)
    if op.name == "attention":
        return _Moved(gathered=2 * dense, nonzero=INDEX_BYTES, filled_row=dense, result_row=dense)
    raise Unsupported(f"no bound of {op.name}: give spmm, spmm_mean, spmm_max, sddmm or attention")


def measure_roof(threads: int, *, clock: Callable[[], float] = time.perf_counter, rounds: int = ROUNDS) -> Roof:
    """Measure the peak rates of `threads` threads and of one, in about a second; keep the best.

    All rates are measured in turn in every round, and the best round counts. A cache is read sequentially, by buffers
    of three times the cache before it and of half its own size. Memory is read, and copied with stores past
    the caches.

    Args:
        clock: wall seconds.
        rounds: more of them find rates of a busy machine that are nearer to those of an idle one.
    """
    teams = sorted({1, checked_threads(threads)})
    sizes = [size for _, size in sorted(cache_capacities(threads).items())]
    names = [*(f"L{number}" for number in range(2, len(sizes) + 1)), MEMORY]
    buffers = _Buffers(min(MAX_STREAM_BYTES, MEMORY_FACTOR * sum(sizes)))
    best: dict[str, float] = {}
    for _ in range(rounds):
        for team in teams:
            for name, rate in _one_round(buffers, sizes, names, team, clock):
                best[name] = max(best.get(name, 0.0), rate)
    held = np.cumsum(sizes)
    return Roof(threads, best["flops"], tuple(
        Supply(name, best[name], max(best[name], best.get(f"{name} both ways", 0.0)), int(held[number]),
               private=number + 1 < len(sizes)) for number, name in enumerate(names)))


def _one_round(
    buffers: _Buffers, sizes: Sequence[int], names: Sequence[str], team: int, clock: Callable[[], float],
) -> list[tuple[str, float]]:
    """Measure each rate once, by `team` threads."""
    flops = 2 * vector_lanes() * UNROLLED * MULTIPLICATIONS * team
    taken = [("flops", flops / buffers.seconds(MULTIPLY, MULTIPLICATIONS, 1, team, clock))]
    for name, before, here in zip(names, sizes, sizes[1:], strict=False):
        for wanted in (3 * before, here // (2 * team)):
            count = buffers.fit(min(wanted, here // 2) // 4, team)
            repeats = max(1, PASS_BYTES // (4 * count * team))
            taken.append((name, 4 * count * repeats * team / buffers.seconds(READ, count, repeats, team, clock)))
    count, half = (buffers.fit(buffers.floats // parts, team) for parts in (team, 2 * team))
    return [*taken, (MEMORY, 4 * count * team / buffers.seconds(READ, count, 1, team, clock)),
            (f"{MEMORY} both ways", 8 * half * team / buffers.seconds(COPY, half, 1, team, clock))]


class _Buffers:
    """A buffer that the loops of kernels/cpu/peak_rates.cpp read, each thread a part of it."""

    def __init__(self, wanted: int) -> None:
        self._array = aligned((wanted // 4,), np.float32)
        self._array.fill(0.5)
        self.floats = self._array.size

    def fit(self, count: int, team: int) -> int:
        """Round a number of floats to what the loops take, within the part of a thread."""
        step = UNROLLED * vector_lanes()
        return max(step, min(count, self.floats // team) // step * step)

    def seconds(self, kind: int, count: int, repeats: int, team: int, clock: Callable[[], float]) -> float:
        """Time one call; a copy goes from the first half to the second."""
        begin = address(self._array, np.float32)
        work = _PeakRate(begin, begin + 4 * (self.floats // 2 // 64 * 64), count, repeats, team, kind, 0.0)
        start = clock()
        _library("peak_rates").sparloom_peak_rate(ctypes.byref(work))
        return clock() - start


class _ReuseDistances(ctypes.Structure):
    """The struct ReuseDistances of kernels/cpu/reuse_distance.cpp."""

    _fields_ = (
        ("indices", ctypes.c_void_p), ("rows", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "cols", "all_rows")),
        *((name, ctypes.c_void_p) for name in ("columns", "nonzeros", "begun")),
    )


class _PeakRate(ctypes.Structure):
    """The struct PeakRate of kernels/cpu/peak_rates.cpp."""

    _fields_ = (("from", ctypes.c_void_p), ("to", ctypes.c_void_p), ("count", ctypes.c_int64),
                ("repeats", ctypes.c_int64), ("threads", ctypes.c_int64), ("kind", ctypes.c_int32),
                ("result", ctypes.c_float))


@cache
def _library(name: str) -> Any:
    library = compile_cpp([f"cpu/{name}.cpp"])
    if name == "reuse_distance":
        library.sparloom_reuse_distances.restype = ctypes.c_int32
    else:
        library.sparloom_peak_rate.restype = None
    return library
