"""The machine of a measurement: its processors with their caches, its memory, and numbers of threads."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparloom.sparse import Pattern

CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
CPU0 = Path("/sys/devices/system/cpu/cpu0")
CACHE_NAMES = {("1", "Data"): "cache_l1d", ("2", "Unified"): "cache_l2", ("3", "Unified"): "cache_l3"}
DEFAULT_CACHE_BYTES = 2 << 20  # a second-level cache and a share of a third are seldom smaller
USUAL_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
THREADS_PER_PROCESSOR = 4
MIN_THREAD_LIMIT = 64  # allowed on any machine
MACHINE = ("name", "processor", "architecture", "cache_l1d", "cache_l2", "cache_l3")
VALUE_BYTES = 4
"""Bytes of a float32."""
SHARED_FRACTION = 0.25  # of the shared cache that is left to dense rows


@cache
def describe_machine() -> dict[str, str | int]:
    """Describe processor, caches, memory and system; nothing identifies the host or its user.

    Returns:
        `name` (one line that goes into sample tables), `processor`, `architecture`, `threads`, `cache_l1d`,
        `cache_l2`, `cache_l3` (per instance, as the kernel prints them, "" when unknown), `memory_mib`, `system`.
    """
    processor = _processor_name()
    threads = len(os.sched_getaffinity(0))
    caches = dict.fromkeys(CACHE_NAMES.values(), "")
    for folder in sorted((CPU0 / "cache").glob("index*")):
        key = (_read(folder / "level"), _read(folder / "type"))
        if key in CACHE_NAMES:
            caches[CACHE_NAMES[key]] = _read(folder / "size")
    return {
        "name": f"{processor}, {threads} threads, L2 {caches['cache_l2'] or '?'}, L3 {caches['cache_l3'] or '?'}",
        "processor": processor,
        "architecture": platform.machine(),
        "threads": threads,
        **caches,
        "memory_mib": _memory_bytes() // 2**20,
        "system": f"{platform.system()} {platform.release()}",
    }


def usable_memory() -> int:
    """Return the bytes of memory of this machine, or of its container if that may take less."""
    limits = [_memory_bytes()]
    for path in CONTAINER_LIMITS:
        text = _read(path)
        limits += [int(text)] if text.isdecimal() else []
    return min(limits)


@cache
def vector_lanes() -> int:
    """Count the float32 numbers of a vector register: 16 with AVX-512, 8 with AVX, else 4."""
    features = set(_read(Path("/proc/cpuinfo")).split())
    return 16 if "avx512f" in features else 8 if "avx" in features else 4


def cache_bytes_per_core(processor: Path = CPU0) -> int:
    """Add up the data caches of a processor, each divided among the cores that share it.

    Args:
        processor: sysfs folder of one logical processor.

    Returns:
        Bytes; 2 MiB where the system does not say.
    """
    return sum(size for _, size in _data_caches(processor)) or DEFAULT_CACHE_BYTES


def cache_levels(processor: Path = CPU0) -> dict[int, int]:
    """Map the levels of the data caches of a processor to bytes, divided among the cores that share the cache.

    Args:
        processor: sysfs folder of one logical processor; levels that it does not list are missing.
    """
    return {int(level): size for level, size in _data_caches(processor) if level.isdigit()}


def cache_capacities(threads: int, processor: Path = CPU0) -> dict[int, int]:
    """Map the levels of the data caches to the most bytes that one thread finds, or all threads in the last level.

    Args:
        threads: which share the last level: one whole cache, or their shares of several.
        processor: sysfs folder of one logical processor; a usual cache of each level stands in where it lists none.
    """
    whole = {int(level): size for level, size in _whole_caches(processor) if level.isdigit()} or USUAL_CACHES
    last = max(whole)
    return whole | {last: max(whole[last], threads * cache_levels(processor).get(last, 0))}


def checked_threads(threads: Any, name: str = "threads") -> int:
    """Check a number of threads; None stands for one per processor that this process may use.

    OpenMP ends the process where the system refuses it a thread, and its stack overflows with too many of them: so the
    limit is far below what a system may refuse.

    Args:
        name: of the argument in messages.

    Raises:
        TypeError: it is no whole number.
        ValueError: below 1, or more than 64 and more than four for each processor of the machine.
    """
    if threads is None:
        return len(os.sched_getaffinity(0))
    try:
        if isinstance(threads, bool):
            raise TypeError("a bool")
        count = operator.index(threads)
    except TypeError as error:
        raise TypeError(f"{name}={threads!r}: give a whole number, at least 1") from error
    if count < 1:
        raise ValueError(f"{name}: {count} threads: give at least 1")
    if count > _thread_limit():
        raise ValueError(f"{name}: {count} threads: give at most {_thread_limit()} on this machine, whose processors "
                         f"run {os.cpu_count() or 1} at a time")
    return count


@cache
def machine_digest() -> str:
    """Hash the properties of this machine that decisions may depend on."""
    return _digest(describe_machine())


@cache
def processor_digests() -> frozenset[str]:
    """Hash this machine as seen by processes with one of its processors, two, ... or all."""
    machine = describe_machine()
    here = f", {machine['threads']} threads, "
    names = [str(machine["name"]).replace(here, f", {threads} threads, ")
             for threads in range(1, 1 + max(int(machine["threads"]), os.cpu_count() or 1))]
    return frozenset(_digest({**machine, "name": name}) for name in names)


@dataclass(frozen=True)
class Caches:
    """Caches of the cores that run a kernel, and whether they hold the dense rows that it reads and writes.

    The constants were chosen by measuring all kernels on 14 training matrices with 32 to 256 columns.

    Args:
        near_bytes: private to a core.
        far_bytes: shared, of all threads together.
    """

    near_bytes: float
    far_bytes: float
    threads: int

    @classmethod
    def here(cls, threads: int) -> Caches:
        """Read the sizes from the system, once."""
        levels = _levels()
        near = levels.get(2, 1 << 20)
        return cls(near, threads * levels.get(3, near), threads)

    @property
    def distant_bytes(self) -> float:
        """Bytes of dense rows above which they are better prefetched."""
        return SHARED_FRACTION * self.far_bytes

    def distant(self, pattern: Pattern, width: int, value_bytes: int = VALUE_BYTES) -> bool:
        """Tell whether dense rows are so many that most come from memory and are better prefetched."""
        return _dense_bytes(pattern, width, value_bytes) > self.distant_bytes


@cache
def _thread_limit() -> int:
    return max(MIN_THREAD_LIMIT, THREADS_PER_PROCESSOR * (os.cpu_count() or 1))


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor_name() -> str:
    """Join name, family and model: virtual machines often shorten the name to its maker."""
    fields: dict[str, str] = {}
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    return f"{fields['model name']} family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"


def _data_caches(processor: Path) -> list[tuple[str, int]]:
    """List level and bytes per core of every data cache."""
    siblings = _count(_read(processor / "topology" / "thread_siblings_list")) or 1
    return [(level, size // max(1, sharing // siblings)) for level, size, sharing in _listed_caches(processor)]


def _whole_caches(processor: Path) -> list[tuple[str, int]]:
    """List level and bytes of every data cache."""
    return [(level, size) for level, size, _ in _listed_caches(processor)]


def _listed_caches(processor: Path) -> Iterator[tuple[str, int, int]]:
    """Yield level, bytes and number of logical processors of every data cache."""
    for folder in sorted((processor / "cache").glob("index*")):
        size, sharing = _read(folder / "size"), _count(_read(folder / "shared_cpu_list")) or 1
        if _read(folder / "type") in ("Data", "Unified") and size[:-1].isdigit() and size[-1] in UNITS:
            yield _read(folder / "level"), int(size[:-1]) * UNITS[size[-1]], sharing


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if os.access(path, os.R_OK) else ""


def _count(ranges: str) -> int:
    """Count the numbers of a list such as 0-3,8."""
    count = 0
    for part in ranges.split(",") if ranges else ():
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _digest(machine: Mapping[str, str | int]) -> str:
    return hashlib.sha256(json.dumps([machine[name] for name in MACHINE]).encode()).hexdigest()


@cache
def _levels() -> dict[int, int]:
    return cache_levels()


def _dense_bytes(pattern: Pattern, width: int, value_bytes: int) -> int:
    return value_bytes * width * (pattern.rows + pattern.cols)
