"""Whether caches hold the dense rows that a sparse kernel reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sparloom.measure import cache_levels
from sparloom.sparse import Pattern

__all__ = ["VALUE", "Caches"]

VALUE = 4  # bytes
NEAR_FILLS = 3.0  # times the caches of the cores, from which on a result is better written past them
FAR_SHARE = 0.25  # of the shared cache: so much of it is left to dense rows, beside what else passes through it


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
        """Whether it is so much that most rows come from memory, and are better requested ahead."""
        return _dense_bytes(pattern, width) > FAR_SHARE * self.far_bytes

    def beyond(self, pattern: Pattern, width: int) -> bool:
        """Whether it is more than the shared cache."""
        return _dense_bytes(pattern, width) > self.far_bytes


@cache
def _levels() -> dict[int, int]:
    return cache_levels()


def _dense_bytes(pattern: Pattern, width: int) -> int:
    return VALUE * width * (pattern.rows + pattern.cols)
