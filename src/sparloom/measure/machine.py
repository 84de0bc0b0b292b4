"""Conditions of a measurement: the machine with its caches, memory and threads, and how busy it is.

On a busy machine the wrong candidate wins. A kernel of several threads is as slow as the thread that waits longest for
a processor, so a kernel of one thread may win that is several times slower on an idle machine. Linux counts the seconds
that each thread has waited (/proc/self/task/*/schedstat); elsewhere involuntary context switches stand in. Processors
taken away by other virtual machines or by the limit of a container are counted in /proc/stat and in the cpu.stat of the
control group.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from sparloom.sparse import Pattern

__all__ = [
    "KEEP_BUSY", "VALUE_BYTES", "Caches", "LoadWatch", "NoLoad", "ProcessLoad", "SystemLoad", "cache_bytes_per_core",
    "cache_capacities", "cache_levels", "checked_threads", "describe_machine", "machine_digest", "processor_digests",
    "usable_memory", "vector_lanes", "watch_load", "watched",
]

Result = TypeVar("Result")

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
OVERFLOW_FACTOR = 3.0  # of the caches of the cores, above which results better bypass them
SHARED_FRACTION = 0.25  # of the shared cache that is left to dense rows

KEEP_BUSY = "SPARLOOM_KEEP_BUSY"
"""Environment variable that stores decisions of busy machines, too."""

MAX_WAITED, MAX_TAKEN = 0.05, 0.05  # shares of the measured seconds, above which a machine is busy
WAKE_SECONDS = 50e-6  # that a thread may wait in one call: as long as it takes to wake it up
SWITCH_SECONDS = 3e-3  # waited after an involuntary context switch, where waiting is not counted
MAX_THREADS = 16  # of this process that are watched, the first one and the newest
GROUPS = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))


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
    def overflow_bytes(self) -> float:
        """Bytes of dense rows above which results better bypass the caches."""
        return OVERFLOW_FACTOR * self.near_bytes * self.threads

    @property
    def distant_bytes(self) -> float:
        """Bytes of dense rows above which they are better prefetched."""
        return SHARED_FRACTION * self.far_bytes

    def overflow(self, pattern: Pattern, width: int, value_bytes: int = VALUE_BYTES) -> bool:
        """Tell whether dense rows, one per row and column of A, are so large that results better bypass the caches."""
        return _dense_bytes(pattern, width, value_bytes) > self.overflow_bytes

    def distant(self, pattern: Pattern, width: int, value_bytes: int = VALUE_BYTES) -> bool:
        """Tell whether they are so large that most rows come from memory and are better prefetched."""
        return _dense_bytes(pattern, width, value_bytes) > self.distant_bytes

    def beyond(self, pattern: Pattern, width: int, value_bytes: int = VALUE_BYTES) -> bool:
        """Tell whether they exceed the shared cache."""
        return _dense_bytes(pattern, width, value_bytes) > self.far_bytes


class SystemLoad(Protocol):
    """Counts how long this process had no processors; tests provide their own numbers."""

    def waits(self) -> Mapping[int, float]:
        """Seconds that each thread has been ready to run without a processor: thread -> seconds."""

    def taken(self) -> float:
        """Seconds for which the average processor was taken away."""

    def refresh(self) -> None:
        """Also count for threads that were started since."""

    def close(self) -> None:
        """Release the counters."""


class ProcessLoad:
    """The load that the system reports; if it reports none, the machine counts as idle."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._files: dict[int, int] = {}  # set before any is open: an exception may come at any point
        _open_files(self._files)

    def waits(self) -> Mapping[int, float]:
        """Count for up to 16 threads, or for the whole process; takes some microseconds."""
        waits = {}
        if os.getpid() == self._process:  # the files of a forked child are those of its parent
            for thread, file in self._files.items():
                with suppress(OSError, ValueError, IndexError):  # it has ended
                    waits[thread] = 1e-9 * int(os.pread(file, 100, 0).split()[1])
        if any(waits.values()):
            return waits
        return {0: SWITCH_SECONDS * resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw}

    def taken(self) -> float:
        """Seconds stolen from this virtual machine, and seconds for which its container was throttled."""
        return _stolen() + _throttled()

    def refresh(self) -> None:
        """Open the counters of the current threads."""
        self.close()
        self._process = os.getpid()
        _open_files(self._files)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __del__(self) -> None:
        self.close()


class NoLoad:
    """A machine that counts as idle, whatever runs there."""

    def waits(self) -> Mapping[int, float]:
        return {}

    def taken(self) -> float:
        return 0.0

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass


class LoadWatch:
    """Sums up for how much of the measured time processors were missing.

    Args:
        load: counters (default: of this process).
        clock: wall seconds.
    """

    def __init__(self, load: SystemLoad | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._load, self._clock = load or ProcessLoad(), clock
        self._start, self._taken = clock(), self._load.taken()
        self._before: Mapping[int, float] = {}
        self._ended = -math.inf  # time of the last measurement
        self._waited = self._measured = 0.0

    def begin(self) -> None:
        """Begin a measurement; reuse the counts at the end of the last one if it has just ended."""
        if self._clock() - self._ended > WAKE_SECONDS:
            self._before = self._load.waits()

    def end(self, seconds: float) -> None:
        """End a measurement of so many seconds; the thread that waited longest delayed it."""
        before, after = self._before, self._load.waits()
        waited = max((now - before.get(thread, 0.0) for thread, now in after.items()), default=0.0)
        self._waited += waited if waited > WAKE_SECONDS else 0.0
        self._measured += seconds
        self._before, self._ended = after, self._clock()

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch the block, including threads that it starts."""
        start = self._clock()
        self.begin()
        yield
        self._load.refresh()
        self.end(self._clock() - start)

    @property
    def held_up(self) -> bool:
        """Tell whether threads waited for more than a small part of the time."""
        return self._waited > MAX_WAITED * self._measured

    def reason(self) -> str:
        """Reason why the machine was busy; "" if it was not."""
        if self.held_up:
            share = self._waited / max(self._measured, 1e-9)
            return f"threads waited for processors for {100 * min(1.0, share):.0f} % of the time"
        taken, elapsed = self._load.taken() - self._taken, max(self._clock() - self._start, 1e-9)
        if taken > MAX_TAKEN * elapsed:
            return f"processors were taken away for {1e3 * taken:.0f} ms of {1e3 * elapsed:.0f}"
        return ""

    def close(self) -> str:
        """Release the counters and return the reason."""
        reason = self.reason()
        self._load.close()
        return reason


def watch_load(*, keep_busy: bool = False) -> LoadWatch:
    """Watch the load of this process, unless decisions of a busy machine are to be stored, too.

    Args:
        keep_busy: they are; SPARLOOM_KEEP_BUSY=1 has the same effect.

    Raises:
        ValueError: SPARLOOM_KEEP_BUSY is neither 0 nor 1.
    """
    given = os.environ.get(KEEP_BUSY) or "0"
    if given not in ("0", "1"):
        raise ValueError(f"{KEEP_BUSY}={given!r}: give 0 or 1, or unset it")
    return LoadWatch(NoLoad() if keep_busy or given == "1" else ProcessLoad())


def watched(decide: Callable[[], Result], *, keep_busy: bool) -> tuple[Result, str]:
    """Decide, and return why the machine was busy meanwhile ("" if it was not)."""
    watch = watch_load(keep_busy=keep_busy)
    with watch.over():
        result = decide()
    return result, watch.close()


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


def _open_files(files: dict[int, int]) -> None:
    """Open the counters of some threads: thread -> file."""
    try:
        threads = sorted(map(int, os.listdir("/proc/self/task")))
    except OSError:
        return
    for thread in [*threads[:1], *threads[1:][-(MAX_THREADS - 1):]]:
        with suppress(OSError):
            files[thread] = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)


def _stolen() -> float:
    with suppress(OSError, ValueError, IndexError), open("/proc/stat", "rb") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    return 0.0


def _throttled() -> float:
    for path in _limited_groups():
        figures = _figures(path)
        return 1e-6 * figures.get("throttled_usec", 0) + 1e-9 * figures.get("throttled_time", 0)
    return 0.0


@cache
def _limited_groups() -> tuple[Path, ...]:
    """Control group of this process, if its processors are limited."""
    return tuple(path for path in GROUPS if _figures(path).get("nr_periods"))


def _figures(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError):
        return {name: int(number) for name, number in map(str.split, path.read_text().splitlines())}
    return {}
