"""Products of three matrices as decisions see them: patterns, tilings, and cost models.

`Estimate` gives seconds of fused and unfused loops by flops and bytes over rates of the machine:

    unfused   loop one:  flops / rate  +  its inputs / memory  +  D1 written
              loop two:  rows of D1 gathered  +  D1 read once from where it lies  +  A, D / memory
    fused     loop one:  the same, but D1 is written back only where wavefront 1 needs it (`local`)
              loop two:  fused rows gather from the tile; the others as unfused, from the rows that are needed

Gathered rows come from the private cache of a core, the shared cache or memory, depending on how far apart in the loop
they are read.

Departure from Equation 4 of tile fusion, which counts what one tile moves and compares it with a cache: that is how
tiles are split (`Sketch.tiling`); the estimate counts all that both loops move, and divides it by rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from sparloom.errors import Unsupported
from sparloom.fusion import (
    FusedLoops,
    Loop,
    Pair,
    Reads,
    coarse_tiles,
    gemm_spmm_loops,
    spmm_gemm_loops,
    spmm_spmm_loops,
)
from sparloom.ops import Operands
from sparloom.space import Config
from sparloom.sparse import Pattern
from sparloom.tuning.machine import Rates

SAMPLED_READS = 1 << 16  # of loop two, whose distances are measured
SAMPLED_TILES = 3  # whose reads are counted exactly

NO_PREFETCH = 1.2  # factor of gathering without prefetching


@dataclass(frozen=True)
class Tiling:
    """Tiles as the inspector may make them.

    Args:
        tiles: in wavefront 0.
        rows: iterations of loop one per tile.
        fused_rows: share of loop two in wavefront 0.
        needed_rows: share of loop one that wavefront 1 reads.
        bytes: moved by a tile (Equation 4).
    """

    tiles: int
    rows: float
    fused_rows: float
    needed_rows: float
    bytes: float


class Sketch:
    """Estimates of tilings for two loops in one order; equal tiles stand in for those of the inspector."""

    def __init__(self, loops: FusedLoops) -> None:
        self.loops = loops
        self._tilings: dict[int, Tiling] = {}
        self._near: dict[float, float] = {}

    def tiling(self, *, ct_size: int, cache_bytes: int, threads: int) -> Tiling:
        """Estimate the result of the inspector: coarse tiles, all halved while they move more than the cache holds."""
        n = self.loops.one.iterations
        tiles = max(1, coarse_tiles(n, threads=threads, ct_size=ct_size))
        while (tiling := self._tiling(tiles)).bytes > cache_bytes and 2 * tiles <= n:
            tiles *= 2
        return tiling

    def near(self, rows: float) -> float:
        """Share of the reads of loop two within `rows` / 2 of the reading iteration."""
        if rows not in self._near:
            self._near[rows] = float(np.mean(self._distances <= rows / 2)) if self._distances.size else 1.0
        return self._near[rows]

    def _tiling(self, tiles: int) -> Tiling:
        if tiles not in self._tilings:
            n, (least, most) = self.loops.one.iterations, self._reach
            inside = least * tiles // n == most * tiles // n if n else np.zeros(0, bool)
            fused = float(np.mean(inside)) if n else 0.0
            moved = _moved(self.loops.one, tiles) + fused * _moved(self.loops.two, tiles)
            self._tilings[tiles] = Tiling(tiles, n / tiles, fused, _needed(self.loops.two, tiles, inside), moved)
        return self._tilings[tiles]

    @cached_property
    def _reach(self) -> tuple[np.ndarray, np.ndarray]:
        """First and last iteration of loop one that each iteration of loop two needs, including its own index."""
        reads, own = self.loops.two.reads, np.arange(self.loops.two.iterations, dtype=np.int64)
        if reads is None:
            return own, own
        least, most = own.copy(), own.copy()
        filled = np.flatnonzero(reads.indptr[1:] > reads.indptr[:-1])
        if filled.size:
            starts, last = reads.indptr[filled], reads.indptr[filled + 1] - 1
            low = reads.indices[starts] if reads.rising else np.minimum.reduceat(reads.indices, starts)
            high = reads.indices[last] if reads.rising else np.maximum.reduceat(reads.indices, starts)
            least[filled], most[filled] = np.minimum(own[filled], low), np.maximum(own[filled], high)
        return least, most

    @cached_property
    def _distances(self) -> np.ndarray:
        """Distances between reads of loop two and their iterations, for a sample."""
        reads = self.loops.two.reads
        if reads is None:
            return np.empty(0, np.int64)
        count = reads.indices.size
        sample = np.linspace(0, count, min(SAMPLED_READS, count), endpoint=False).astype(np.int64)
        reader = np.searchsorted(reads.indptr, sample, side="right") - 1
        return np.abs(reads.indices[sample] - reader)


def _moved(loop: Loop, tiles: int) -> float:
    """Bytes moved by a loop in one of so many tiles; distinct reads are counted in a few of them."""
    n, reads = loop.iterations, loop.reads
    moved = n / tiles * loop.iteration_bytes
    if reads is None:
        return moved
    distinct = []
    for begin, end in _sampled(tiles, n):
        read = np.zeros(reads.extent, bool)
        read[reads.indices[reads.indptr[begin] : reads.indptr[end]]] = True
        distinct.append(np.count_nonzero(read))
    return moved + reads.indices.size / tiles * loop.nonzero_bytes + float(np.mean(distinct)) * loop.column_bytes


def _needed(two: Loop, tiles: int, inside: np.ndarray) -> float:
    """Distinct iterations of loop one that the unfused iterations of a tile read, per iteration.

    What they read in other tiles stands in for what those of other tiles read in this one.
    """
    if two.reads is None or not two.iterations:
        return 0.0
    shares = []
    for begin, end in _sampled(tiles, two.iterations):
        pointers = two.reads.indptr[begin : end + 1]
        read = np.zeros(two.reads.extent, bool)
        late = np.repeat(~inside[begin:end], np.diff(pointers))
        read[two.reads.indices[pointers[0] : pointers[-1]][late]] = True
        shares.append(min(1.0, np.count_nonzero(read) / max(1, end - begin)))
    return float(np.mean(shares))


def _sampled(tiles: int, n: int) -> list[tuple[int, int]]:
    """Bounds of a few of so many tiles."""
    chosen = np.unique(np.linspace(0, tiles - 1, SAMPLED_TILES).astype(np.int64)).tolist()
    return [(tile * n // tiles, (tile + 1) * n // tiles) for tile in chosen]


@dataclass(frozen=True, eq=False)
class Problem:
    """A product without its values: what decisions depend on apart from the machine.

    Args:
        pattern: of A.
        right: pattern of B; None if B is dense.
        inner: columns of B if it is dense, else 0.
        width: columns of D.
        dtype: of all values.
    """

    op: Pair
    pattern: Pattern
    right: Pattern | None
    inner: int
    width: int
    dtype: str

    @classmethod
    def of(cls, op: Pair, operands: Operands) -> Problem:
        """Take patterns and extents from operands."""
        right = None if operands.right is None else operands.right.pattern
        inner = operands.dense["B"].shape[1] if right is None else 0
        return cls(op, operands.matrix.pattern, right, inner, op.width(operands), operands.matrix.dtype.name)

    @property
    def element_bytes(self) -> int:
        """Size of a value."""
        return np.dtype(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Size of a row of D1."""
        return self.element_bytes * (self.inner if self.op.name == "spmm_gemm" else self.width)

    @property
    def total_bytes(self) -> int:
        """Size of all operands, D1 and D."""
        value, middle = self.element_bytes, self.graph.cols * self.row_bytes
        sparse = (value + 4) * (self.pattern.nnz + (0 if self.right is None else self.right.nnz))
        dense = self.pattern.cols * self.inner if self.right is None else self.right.cols * self.width
        return sparse + middle + value * (dense + self.pattern.rows * self.width)

    @cached_property
    def graph(self) -> Pattern:
        """Dependences: row j has the iterations of loop one whose results iteration j of loop two reads."""
        return self.pattern if self.op.name != "spmm_gemm" else Pattern.identity(self.pattern.rows)

    @property
    def fusible(self) -> bool:
        """Tell whether both loops have the same number of iterations, as the inspector requires."""
        return self.graph.rows == self.graph.cols

    def loops(self) -> FusedLoops:
        """Both loops as the inspector takes them.

        Raises:
            Unsupported: they differ in length.
        """
        if not self.fusible:
            rows, cols = self.graph.shape
            raise Unsupported(f"loops of {cols} and {rows} iterations: only loops of one length are fused; give "
                              f"fuse=\"never\" or \"auto\"")
        return self._loops

    @cached_property
    def sketch(self) -> Sketch:
        """Both loops as estimates take them."""
        return Sketch(self.loops())

    @cached_property
    def _loops(self) -> FusedLoops:
        matrix = Reads.of(self.pattern)
        sizes: Mapping[str, int] = {"width": self.width, "element_bytes": self.element_bytes}
        match self.op.name:
            case "gemm_spmm":
                return gemm_spmm_loops(matrix, inner=self.inner, **sizes)
            case "spmm_gemm":
                return spmm_gemm_loops(matrix, inner=self.inner, **sizes)
        return spmm_spmm_loops(matrix, Reads.of(self.right), **sizes)


class PairCostModel(Protocol):
    """Ranks configurations of `sparloom.fusion.TileFusionSpace` for one problem."""

    def score(self, problem: Problem, configs: Sequence[Config]) -> np.ndarray:
        """Score configurations, (configs,): low = fast; not comparable between problems."""


@dataclass(frozen=True)
class Estimate:
    """Cost model by formula.

    Args:
        threads: of the executor.
    """

    rates: Rates
    threads: int

    def score(self, problem: Problem, configs: Sequence[Config]) -> np.ndarray:
        """Estimate seconds, (configs,)."""
        return np.array([self._fused(problem, config) if config["ct_size"] else self._unfused(problem, config)
                         for config in configs])

    def _unfused(self, problem: Problem, config: Config) -> float:
        return self._always(problem, config) + self._write(problem, 1.0, bool(config["stream_first"])) + self._gather(
            problem, config, share=1.0, rows=1.0)

    def _fused(self, problem: Problem, config: Config) -> float:
        tiling = problem.sketch.tiling(
            ct_size=config["ct_size"], cache_bytes=1024 * config["cache"], threads=self.threads)
        late, needed = 1.0 - tiling.fused_rows, tiling.needed_rows
        written = needed if config["local"] else 1.0
        tile = self._gathering(problem, config, tiling.rows * problem.row_bytes)
        return (self._always(problem, config) + self._write(problem, written, bool(config["stream_first"]))
                + tiling.fused_rows * tile + self._gather(problem, config, share=late, rows=needed))

    def _always(self, problem: Problem, config: Config) -> float:
        """Seconds of loop one without its result, of A, and of D."""
        pattern, rates, value = problem.pattern, self.rates, problem.element_bytes
        result = pattern.rows * problem.width * value * (1 if config["stream"] else 2)
        sparse = (value + 4) * pattern.nnz + 8 * pattern.rows
        if problem.right is not None:
            sparse += (value + 4) * problem.right.nnz + 8 * problem.right.rows
            gathered = problem.right.nnz * problem.row_bytes / rates.near
            first = gathered + self._read(problem.right.cols * problem.row_bytes)
        else:
            dense = problem.graph.cols * problem.inner
            first = 2 * dense * problem.width / rates.flops + dense * value / rates.memory
        return first + (result + sparse) / rates.memory

    def _write(self, problem: Problem, share: float, stream: bool) -> float:
        """Seconds of writing D1: to memory if it exceeds the caches; without streaming, its lines are read first."""
        size = problem.graph.cols * problem.row_bytes
        if size > self.rates.far_bytes:
            return share * size * (1 if stream else 2) / self.rates.memory
        return share * size / (self.rates.memory if stream else self.rates.far)

    def _read(self, size: float) -> float:
        return size / (self.rates.memory if size > self.rates.far_bytes else self.rates.far)

    def _gather(self, problem: Problem, config: Config, *, share: float, rows: float) -> float:
        """Seconds of wavefront 1, or of all of loop two: `share` of its reads, from a share `rows` of D1."""
        size = problem.graph.cols * problem.row_bytes
        return share * self._gathering(problem, config, size) + self._read(rows * size)

    def _gathering(self, problem: Problem, config: Config, size: float) -> float:
        """Seconds of all reads of loop two from rows of `size` bytes in total."""
        rates, sketch = self.rates, problem.sketch
        near = self._within(sketch, problem, rates.near_bytes, size)
        far = self._within(sketch, problem, rates.far_bytes, size)
        seconds = near / rates.near + (1 if config["prefetch"] else NO_PREFETCH) * (
            (far - near) / rates.far + (1 - far) / rates.memory)
        return problem.graph.nnz * problem.row_bytes * seconds

    def _within(self, sketch: Sketch, problem: Problem, cache: float, size: float) -> float:
        """Share of the reads that hit a cache."""
        return 1.0 if size <= cache else sketch.near(cache / problem.row_bytes)
