"""What a schedule is made for: threads, and the fast memory of each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sparloom.measure import cache_bytes_per_core

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """Arguments of the inspector.

    Args:
        cache_bytes: fast memory of one thread.
        ct_size: most iterations of a coarse tile.
    """

    threads: int
    cache_bytes: int
    ct_size: int = 2048

    @classmethod
    def of_this_machine(cls) -> Budget:
        """Take the processors that this process may use, and all caches of one (§5.1.1)."""
        return cls(len(os.sched_getaffinity(0)), cache_bytes_per_core())
