"""How much fast memory one thread has."""

import os
from pathlib import Path

__all__ = ["cache_bytes_per_core"]

UNKNOWN = 2 << 20  # bytes; a second-level cache and a share of a third are seldom less
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cache_bytes_per_core(processor: Path = Path("/sys/devices/system/cpu/cpu0")) -> int:
    """Add up the data caches of a processor, each divided among the cores that share it.

    Args:
        processor: folder of one logical processor in the form of Linux.

    Returns:
        Bytes; 2 MiB where the system does not say.
    """
    caches = [folder for folder in sorted((processor / "cache").glob("index*"))
              if _read(folder / "type") in ("Data", "Unified")]
    siblings = _count(_read(processor / "topology" / "thread_siblings_list")) or 1
    total = 0
    for folder in caches:
        size, sharing = _read(folder / "size"), _count(_read(folder / "shared_cpu_list")) or 1
        if size[:-1].isdigit() and size[-1] in UNITS:
            total += int(size[:-1]) * UNITS[size[-1]] // max(1, sharing // siblings)
    return total or UNKNOWN


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if os.access(path, os.R_OK) else ""


def _count(ranges: str) -> int:
    """Count the numbers of a list such as 0-3,8."""
    count = 0
    for part in ranges.split(",") if ranges else ():
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
