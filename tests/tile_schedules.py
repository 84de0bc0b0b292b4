"""Brute-force tile schedules, for tests of executors."""

from collections.abc import Sequence

import numpy as np

from sparloom.fusion import Pair, TileSchedule
from sparloom.sparse import Pattern

__all__ = ["brute_force", "one_to_one", "schedule_of"]


def schedule_of(op: Pair, pattern: Pattern, borders: Sequence[int]) -> TileSchedule:
    """Schedule the loops of an operation."""
    return one_to_one(pattern.rows, borders) if op.name == "spmm_gemm" else brute_force(pattern, borders)


def brute_force(pattern: Pattern, borders: Sequence[int], late_tiles: int = 3) -> TileSchedule:
    """Cut loop one at the borders and fuse each row whose columns lie in one tile, in decreasing order."""
    first = _tiles(pattern.cols, borders)
    fused: list[list[int]] = [[] for _ in first[1:]]
    late, needed = [], np.zeros(pattern.cols, dtype=np.uint8)
    for row in reversed(range(pattern.rows)):
        columns = pattern.indices[pattern.indptr[row] : pattern.indptr[row + 1]]
        tiles = set(np.searchsorted(first, columns, side="right") - 1)
        if len(tiles) <= 1:
            fused[min(tiles, default=0)].append(row)
        else:
            late.append(row)
            needed[columns] = 1
    parts = [*fused, *np.array_split(np.array(late, dtype=np.int32), late_tiles)]
    second = np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])
    second_ptr = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return TileSchedule((len(fused), late_tiles), first, second, second_ptr, needed)


def one_to_one(rows: int, borders: Sequence[int]) -> TileSchedule:
    """Cut two loops at the same places; iteration j of loop two needs iteration j of loop one."""
    first = _tiles(rows, borders)
    return TileSchedule((first.size - 1, 0), first, np.arange(rows, dtype=np.int32), first.copy(),
                        np.zeros(rows, dtype=np.uint8))


def _tiles(rows: int, borders: Sequence[int]) -> np.ndarray:
    return np.array([0, *sorted({border for border in borders if 0 < border < rows}), rows], dtype=np.int64)
