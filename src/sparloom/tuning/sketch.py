"""What an estimate knows of two loops: how far their reads reach, looked at once per order of iterations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparloom.fusion import FusedLoops, Loop, coarse_tiles

__all__ = ["Sketch", "Tiling"]

SAMPLED = 1 << 16  # reads of loop two whose distances are looked at
SAMPLED_TILES = 3  # tiles whose reads are looked at one by one


@dataclass(frozen=True)
class Tiling:
    """Ranges as the inspector may leave them.

    Args:
        tiles: of wavefront 0.
        rows: iterations of loop one in a tile.
        fused_rows: share of loop two that lies in wavefront 0.
        needed_rows: share of loop one that wavefront 1 reads.
        bytes: that a tile moves (Equation 4).
    """

    tiles: int
    rows: float
    fused_rows: float
    needed_rows: float
    bytes: float


class Sketch:
    """Two loops in one order of iterations. Tiles of equal size stand for those that the inspector makes."""

    def __init__(self, loops: FusedLoops) -> None:
        self.loops = loops
        self._tilings: dict[int, Tiling] = {}
        self._near: dict[float, float] = {}

    def tiling(self, *, ct_size: int, cache_bytes: int, threads: int) -> Tiling:
        """Estimate what the inspector makes: coarse ranges, all halved while they move more than the cache holds."""
        n = self.loops.one.iterations
        tiles = max(1, coarse_tiles(n, threads=threads, ct_size=ct_size))
        while (tiling := self._tiling(tiles)).bytes > cache_bytes and 2 * tiles <= n:
            tiles *= 2
        return tiling

    def near(self, rows: float) -> float:
        """Share of the reads of loop two that lie within `rows` / 2 of the iteration that reads them."""
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
        """Least and most iteration of loop one that each iteration of loop two needs, itself among them."""
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
        """How far a sample of what loop two reads lies from the iteration that reads it."""
        reads = self.loops.two.reads
        if reads is None:
            return np.empty(0, np.int64)
        place = np.linspace(0, reads.indices.size, min(SAMPLED, reads.indices.size), endpoint=False).astype(np.int64)
        reader = np.searchsorted(reads.indptr, place, side="right") - 1
        return np.abs(reads.indices[place] - reader)


def _moved(loop: Loop, tiles: int) -> float:
    """Bytes of the iterations of a loop in one of so many ranges; distinct reads are counted in some of them."""
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
    """Distinct iterations of loop one that those of a range read which are left to wavefront 1, per iteration.

    What they read in other ranges stands for what those of other ranges read in this one.
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
    """Bounds of a few of so many ranges."""
    chosen = np.unique(np.linspace(0, tiles - 1, SAMPLED_TILES).astype(np.int64)).tolist()
    return [(tile * n // tiles, (tile + 1) * n // tiles) for tile in chosen]
