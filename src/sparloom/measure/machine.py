"""The machine that a measurement was made on.

How much fast memory one thread has.

How many threads a call may have.
"""

import operator
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "cache_bytes_per_core", "cache_levels", "checked_threads", "describe_machine", "usable_memory", "vector_lanes",
]

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container


@cache
def describe_machine() -> dict[str, str | int]:
    """Describe processor, caches, memory and system; holds nothing that identifies the host or its user.

    Returns:
        `name` (one line that goes into sample tables), `processor`, `architecture`, `threads`, `cache_l1d`,
        `cache_l2`, `cache_l3` (per instance, as the kernel prints them, "" when unknown), `memory_mib`, `system`.
    """
    processor = _processor()
    threads = len(os.sched_getaffinity(0))
    caches = _caches()
    return {
        "name": f"{processor}, {threads} threads, L2 {caches['cache_l2'] or '?'}, L3 {caches['cache_l3'] or '?'}",
        "processor": processor,
        "architecture": platform.machine(),
        "threads": threads,
        **caches,
        "memory_mib": _memory() // 2**20,
        "system": f"{platform.system()} {platform.release()}",
    }


def usable_memory() -> int:
    """Bytes that this machine has, or that its container may take."""
    found = [_memory()]
    for path in LIMITS:
        text = path.read_text(encoding="ascii").strip() if path.exists() else ""
        found += [int(text)] if text.isdecimal() else []
    return min(found)


@cache
def vector_lanes() -> int:
    """Count the float32 numbers of a vector register: 16 with AVX-512, 8 with AVX, else 4."""
    path = Path("/proc/cpuinfo")
    features = set(path.read_text(encoding="utf-8").split()) if path.exists() else set()
    return 16 if "avx512f" in features else 8 if "avx" in features else 4


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    """Name, family and model: virtual machines often shorten the name to its maker."""
    fields: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    return f"{fields['model name']} family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"


def _caches() -> dict[str, str]:
    sizes = {"cache_l1d": "", "cache_l2": "", "cache_l3": ""}
    names = {("1", "Data"): "cache_l1d", ("2", "Unified"): "cache_l2", ("3", "Unified"): "cache_l3"}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        key = tuple((folder / part).read_text(encoding="utf-8").strip() for part in ("level", "type"))
        if key in names:
            sizes[names[key]] = (folder / "size").read_text(encoding="utf-8").strip()
    return sizes


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
    return sum(size for _, size in _read_caches(processor)) or UNKNOWN


def cache_levels(processor: Path = PROCESSOR) -> dict[int, int]:
    """List the data caches of a processor: level -> bytes, divided among the cores that share it.

    Args:
        processor: as above; of levels that the system does not name, nothing is listed.
    """
    return {int(level): size for level, size in _read_caches(processor) if level.isdigit()}


def _read_caches(processor: Path) -> list[tuple[str, int]]:
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


PER_PROCESSOR = 4
LEAST = 64  # what is allowed on any machine


def checked_threads(given: Any, name: str = "threads") -> int:
    """Take a number of threads; for None, one for each processor that this process may use.

    OpenMP ends the process where the system refuses it a thread, and has a stack that too many overflow: so there is a
    limit far below what a system may refuse.

    Args:
        name: of the argument in messages.

    Raises:
        TypeError: it is no whole number.
        ValueError: below 1, or more than 64 and more than four for each processor of the machine.
    """
    if given is None:
        return len(os.sched_getaffinity(0))
    try:
        if isinstance(given, bool):
            raise TypeError("a bool")
        threads = operator.index(given)
    except TypeError as error:
        raise TypeError(f"{name}={given!r}: give a whole number, at least 1") from error
    if threads < 1:
        raise ValueError(f"{name}: {threads} threads: give at least 1")
    if threads > _most():
        raise ValueError(f"{name}: {threads} threads: give at most {_most()} on this machine, whose processors run "
                         f"{os.cpu_count() or 1} at a time")
    return threads


@cache
def _most() -> int:
    return max(LEAST, PER_PROCESSOR * (os.cpu_count() or 1))
