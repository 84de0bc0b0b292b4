"""How much fast memory one thread has."""

import os
from pathlib import Path

__all__ = ["cache_bytes_per_core", "cache_levels"]

PROCESSOR = Path("/sys/devices/system/cpu/cpu0")
UNKNOWN = 2 << 20  # bytes; a second-level cache and a share of a third are seldom less
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cache_bytes_per_core(processor: Path = PROCESSOR) -> int:
    """Add up the data caches of a processor, each divided among the cores that share it.

    Args:
        processor: folder of one logical processor in the form of Linux.

    Returns:
        Bytes; 2 MiB where the system does not say.
    """
    return sum(size for _, size in _caches(processor)) or UNKNOWN


def cache_levels(processor: Path = PROCESSOR) -> dict[int, int]:
    """List the data caches of a processor: level -> bytes, divided among the cores that share it.

    Args:
        processor: as above; of levels that the system does not name, nothing is listed.
    """
    return {int(level): size for level, size in _caches(processor) if level.isdigit()}


def _caches(processor: Path) -> list[tuple[str, int]]:
    """Level and bytes per core of every data cache."""
    siblings = _count(_read(processor / "topology" / "thread_siblings_list")) or 1
    found = []
    for folder in sorted((processor / "cache").glob("index*")):
        size, sharing = _read(folder / "size"), _count(_read(folder / "shared_cpu_list")) or 1
        if _read(folder / "type") in ("Data", "Unified") and size[:-1].isdigit() and size[-1] in UNITS:
            found.append((_read(folder / "level"), int(size[:-1]) * UNITS[size[-1]] // max(1, sharing // siblings)))
    return found


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if os.access(path, os.R_OK) else ""


def _count(ranges: str) -> int:
    """Count the numbers of a list such as 0-3,8."""
    count = 0
    for part in ranges.split(",") if ranges else ():
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
