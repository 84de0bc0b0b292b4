"""Whether caches hold the dense rows that a sparse kernel reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from sparloom.measure import cache_levels
from sparloom.sparse import Pattern

__all__ = ["VALUE", "Caches"]

VALUE = 4  # bytes
NEAR_FILLS = 3.0  # times the caches of the cores, from which on a result is better written past them
FAR_SHARE = 0.25  # of the shared cache: so much of it is left to dense rows, beside what else passes through it
SCATTERED = 0.15  # share of rows that lie apart, from which on they are better requested ahead ...
LONG_BYTES = 1024  # ... unless they are as long as that
WINDOWS = 4  # places of a matrix that are looked at


@dataclass(frozen=True)
class Caches:
    """Of the cores that run a kernel.

    The shares above were chosen by trials of all kernels on 14 training matrices with 32 to 256 columns.

    Args:
        near_bytes: of one core alone.
        far_bytes: shared, of all threads together.
    """

    near_bytes: float
    far_bytes: float
    threads: int

    @classmethod
    def here(cls, threads: int) -> Caches:
        """Ask the system, once."""
        levels = _levels()
        near = levels.get(2, 1 << 20)
        return cls(near, threads * levels.get(3, near), threads)

    def overflow(self, pattern: Pattern, width: int) -> bool:
        """Whether a dense row for each row and column of A is so much that a result is better written past them."""
        return _dense_bytes(pattern, width) > NEAR_FILLS * self.near_bytes * self.threads

    def distant(self, pattern: Pattern, width: int) -> bool:
        """Whether it is so much that most rows come from memory."""
        return _dense_bytes(pattern, width) > FAR_SHARE * self.far_bytes

    def fetch(self, op: str, pattern: Pattern, width: int) -> bool:
        """Whether rows are better requested ahead: not where the processor does so itself.

        SpMM, which writes past the caches, and attention gain by it in any order of the columns.
        """
        if not self.distant(pattern, width):
            return False
        return op != "sddmm" or (VALUE * width < LONG_BYTES and self.scattered(pattern, width) > SCATTERED)

    def scattered(self, pattern: Pattern, width: int) -> float:
        """Measure how many of the gathered rows lie apart from all others that the cache of a core holds with them.

        Runs of neighbouring columns among nonzeros that follow each other, as many as dense rows fit the cache of a
        core, over these nonzeros; the mean over some places. It is near 0 for a mesh in a good order, whose rows the
        processor itself requests ahead, and 1 for random columns.
        """
        count = min(pattern.nnz, max(1, int(self.near_bytes) // (VALUE * width)))
        if not count:
            return 0.0
        begins = np.linspace(0, pattern.nnz - count, WINDOWS).astype(np.int64)
        runs = (1 + np.count_nonzero(np.diff(np.sort(pattern.indices[begin : begin + count])) > 1) for begin in begins)
        return sum(runs) / (count * WINDOWS)


@cache
def _levels() -> dict[int, int]:
    return cache_levels()


def _dense_bytes(pattern: Pattern, width: int) -> int:
    return VALUE * width * (pattern.rows + pattern.cols)
