"""What a schedule is made for: threads, and the fast memory of each."""

from __future__ import annotations

from dataclasses import dataclass

from sparloom.measure import describe_machine

__all__ = ["Budget"]

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FALLBACK = 1 << 20  # where the system does not tell its caches


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
        """Take all processors, and per thread its first two caches and its share of the third (§5.1.1)."""
        machine = describe_machine()
        threads = int(machine["threads"])
        first, second, third = (_bytes(str(machine[f"cache_{level}"])) for level in ("l1d", "l2", "l3"))
        return cls(threads, first + second + third // threads or _FALLBACK)


def _bytes(size: str) -> int:
    """Read "32K"."""
    return int(size[:-1]) * _UNITS[size[-1]] if size else 0
