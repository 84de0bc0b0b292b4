"""Orders of the iterations that let the inspector fuse more of them.

An order is a permutation, (n,) int32, of the old numbers of the new iterations. It applies to both loops, and so to
rows and columns of A: rows of A, B and D move together.
"""

from dataclasses import dataclass

import numpy as np

from sparloom.fusion.schedule import TileSchedule
from sparloom.sparse import Pattern, locality_order

MIN_FUSED_RATIO = 1e-4
"""Matrices below this fused ratio are reordered (§5.1.2)."""


@dataclass(frozen=True, eq=False)
class Reordered:
    """A square pattern with its rows and columns reordered.

    Args:
        order: (rows,) int32, the old number of each new row.
        source: (nnz,) int64, the old position of the value of each nonzero.
    """

    pattern: Pattern
    order: np.ndarray
    source: np.ndarray

    @classmethod
    def of(cls, pattern: Pattern, order: np.ndarray) -> "Reordered":
        """Reorder a square pattern by a permutation of its rows."""
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
    """Order a square pattern by reverse Cuthill-McKee on A + A^T, which reduces the bandwidth."""
    _check_square(pattern)
    return locality_order(pattern)[0].astype(np.int32)


def _check_square(pattern: Pattern) -> None:
    if pattern.rows != pattern.cols:
        raise ValueError(f"a pattern of {pattern.rows} x {pattern.cols}: only a square one has an order of both")
