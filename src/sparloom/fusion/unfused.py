"""Schedules in which nothing is fused: what fusion is compared with runs in the same executor."""

from dataclasses import replace

import numpy as np

from sparloom.fusion.schedule import TileSchedule
from sparloom.sparse import Pattern

__all__ = ["separated", "unfused_schedule"]

TILES_PER_THREAD = 16
ROW_WORK = 4  # nonzeros that cost as much as beginning a row


def unfused_schedule(pattern: Pattern, *, threads: int) -> TileSchedule:
    """Run one loop, then the other, both in natural order in tiles of about equal work.

    Args:
        pattern: of A: iteration j of loop two reads the columns of row j.
    """
    rows = np.linspace(0, pattern.cols, min(TILES_PER_THREAD * threads, pattern.cols) + 1).astype(np.int64)
    work = pattern.indptr + ROW_WORK * np.arange(pattern.rows + 1)
    shares = np.linspace(0, work[-1], min(TILES_PER_THREAD * threads, pattern.rows) + 1)
    twos = np.unique(np.searchsorted(work, shares))
    second_ptr = np.concatenate([np.zeros(rows.size - 1, dtype=np.int64), twos])
    return TileSchedule(
        tiles=(rows.size - 1, twos.size - 1), first=rows, second=np.arange(pattern.rows, dtype=np.int32),
        second_ptr=second_ptr, needed=_read(pattern))


def separated(schedule: TileSchedule, pattern: Pattern) -> TileSchedule:
    """Keep the tiles of a schedule but fuse nothing: loop one, barrier, all tiles of loop two.

    Shows what tiles alone bring.
    """
    fused, late = schedule.tiles
    second_ptr = np.concatenate([np.zeros(fused, dtype=np.int64), schedule.second_ptr])
    return replace(schedule, tiles=(fused, fused + late), second_ptr=second_ptr, needed=_read(pattern))


def _read(pattern: Pattern) -> np.ndarray:
    read = np.zeros(pattern.cols, dtype=np.uint8)
    read[pattern.indices] = 1
    return read
