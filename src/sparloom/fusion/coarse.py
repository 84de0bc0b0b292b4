"""Step 1 of Algorithm 1 in NumPy."""

import numpy as np

from sparloom.fusion.schedule import TileSchedule
from sparloom.sparse import Pattern

__all__ = ["coarse_schedule"]


def coarse_schedule(graph: Pattern, *, rows: int, threads: int) -> TileSchedule:
    """Fuse what a tile of consecutive iterations contains; the rest is wavefront 1.

    Args:
        rows: iterations of a tile, fewer if there would be fewer tiles than threads.
    """
    n = graph.cols
    size = max(1, rows if -(-n // rows) >= threads else -(-n // threads))
    first = np.append(np.arange(0, n, size), n).astype(np.int64)
    owner = graph.indices // size
    row_ids = graph.row_ids()
    late = np.zeros(graph.rows, bool)
    late[row_ids[owner != row_ids // size]] = True
    early, rest = np.flatnonzero(~late), np.flatnonzero(late)
    tiles0 = first.size - 1
    tiles1 = -(-rest.size // size)
    ptr0 = np.searchsorted(early, first)
    ptr1 = early.size + np.minimum(np.arange(1, tiles1 + 1) * size, rest.size)
    needed = np.zeros(n, np.uint8)
    needed[graph.indices[late[row_ids]]] = 1
    return TileSchedule((tiles0, tiles1), first, np.concatenate([early, rest]).astype(np.int32),
                        np.concatenate([ptr0, ptr1]).astype(np.int64), needed)
