"""Facts about this machine on which decisions depend: caches, rates, load, and digests of kernels.

Load: on a busy machine the wrong candidate wins. A kernel of several threads is as slow as the thread that waits
longest for a processor, so a kernel of one thread may win that is several times slower on an idle machine. Linux counts
the seconds that each thread has waited (/proc/self/task/*/schedstat); elsewhere involuntary context switches stand in.
Processors taken away by other virtual machines or by the limit of a container are counted in /proc/stat and in the
cpu.stat of the control group.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from sparloom.errors import SchemaError, Unsupported
from sparloom.fusion import Executor, Variant, unfused_schedule
from sparloom.jit import kernel_folder, sources_digest
from sparloom.measure import cache_levels, describe_machine
from sparloom.ops import GemmSpmm, SpmmSpmm
from sparloom.platforms import CupyGpu
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache, Summary

__all__ = [
    "FUSED_SOURCES", "RAGGED_SOURCES", "VALUE_BYTES", "Caches", "LoadWatch", "NoLoad", "ProcessLoad", "Rates",
    "SystemLoad", "busy_seconds", "check_rates", "device_digest", "get_rates", "kernels_digest", "machine_digest",
    "machine_digests", "machine_rates", "measure_rates", "put_rates", "read_rates", "tell_busy", "watch_load",
    "watched",
]

log = logging.getLogger(__name__)

Read, Result = TypeVar("Read"), TypeVar("Result")

MACHINE = ("name", "processor", "architecture", "cache_l1d", "cache_l2", "cache_l3")
FUSED_SOURCES = ("cpu/*.hpp", "cpu/fused_f32.cpp", "cpu/fused_f64.cpp", "cpu/partition_order.cpp",
                 "cpu/tile_schedule.cpp")
RAGGED_SOURCES = ("cpu/multiply.cpp", "cpu/tall_gemm.hpp", "cpu/gemm.hpp", "cpu/vector.hpp")

VALUE_BYTES = 4
OVERFLOW_FACTOR = 3.0  # of the caches of the cores, above which results better bypass them
SHARED_FRACTION = 0.25  # of the shared cache that is left to dense rows

WIDTH, READS = 64, 32
DENSE_ROWS, NEAR_ROWS, FAR_ROWS, STREAMED_ROWS = 1 << 10, 1 << 13, 1 << 15, 1 << 18  # a dense row of 64 is 256 bytes
RUNS = 5

KEEP_BUSY = "SPARLOOM_KEEP_BUSY"

AGAIN, LATEST = 1.0, 600.0  # seconds until a decision of a busy machine is made again, first and at most
REUSE_FACTOR = 20.0  # such a decision is used for so many times what it took
MAX_WAITED, MAX_TAKEN = 0.05, 0.05  # shares of the measured seconds, above which a machine is busy
WAKE_SECONDS = 50e-6  # that a thread may wait in one call: as long as it takes to wake it up
SWITCH_SECONDS = 3e-3  # waited after an involuntary context switch, where waiting is not counted
MAX_THREADS = 16  # of this process that are watched, the first one and the newest
GROUPS = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))


@cache
def machine_digest() -> str:
    """Hash the properties of this machine that decisions may depend on."""
    return _digest(describe_machine())


def machine_digests() -> frozenset[str]:
    """Hash this machine as seen by processes with one of its processors, two, ... or all; and its GPU."""
    try:
        return _processor_digests() | {device_digest(CupyGpu.current().signature())}
    except Unsupported:
        return _processor_digests()


def device_digest(device: Mapping[str, Any]) -> str:
    """Hash a GPU with its software, as `Gpu.signature` names them."""
    return hashlib.sha256(json.dumps(dict(device), sort_keys=True).encode()).hexdigest()


@cache
def kernels_digest(sources: tuple[str, ...]) -> str:
    """Hash kernel sources and all that they include.

    Args:
        sources: relative to kernels/, of the form "cpu/spmm.cpp" or "cpu/*.hpp".
    """
    folder = kernel_folder()
    return sources_digest([str(path.relative_to(folder)) for name in sources for path in sorted(folder.glob(name))])


@cache
def _processor_digests() -> frozenset[str]:
    machine = describe_machine()
    here = f", {machine['threads']} threads, "
    names = [str(machine["name"]).replace(here, f", {threads} threads, ")
             for threads in range(1, 1 + max(int(machine["threads"]), os.cpu_count() or 1))]
    return frozenset(_digest({**machine, "name": name}) for name in names)


def _digest(machine: Mapping[str, str | int]) -> str:
    return hashlib.sha256(json.dumps([machine[name] for name in MACHINE]).encode()).hexdigest()


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

    def overflow(self, pattern: Pattern, width: int) -> bool:
        """Tell whether dense rows, one per row and column of A, are so large that results better bypass the caches."""
        return _dense_bytes(pattern, width) > OVERFLOW_FACTOR * self.near_bytes * self.threads

    def distant(self, pattern: Pattern, width: int) -> bool:
        """Tell whether they are so large that most rows come from memory and are better prefetched."""
        return _dense_bytes(pattern, width) > SHARED_FRACTION * self.far_bytes

    def beyond(self, pattern: Pattern, width: int) -> bool:
        """Tell whether they exceed the shared cache."""
        return _dense_bytes(pattern, width) > self.far_bytes


@cache
def _levels() -> dict[int, int]:
    return cache_levels()


def _dense_bytes(pattern: Pattern, width: int) -> int:
    return VALUE_BYTES * width * (pattern.rows + pattern.cols)


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


def busy_seconds(reason: str, decision_seconds: float) -> float:
    """Seconds for which to use a decision of a busy machine, 20 times what it took; 0.0 if it was not busy.

    Args:
        reason: why the machine was busy; "" if it was not.
    """
    if not reason:
        return 0.0
    tell_busy()
    return max(AGAIN, REUSE_FACTOR * decision_seconds)


@cache
def tell_busy() -> None:
    """Log once per process that decisions are not stored."""
    log.info("the machine is busy: decisions are used by this process alone until made again; %s=1 stores them",
             KEEP_BUSY)


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


def check_rates(rates: Any) -> None:
    """Check that all fields of a dataclass are finite and above 0.

    Raises:
        ValueError: one is not.
    """
    if not all(math.isfinite(number) and number > 0 for number in asdict(rates).values()):
        raise ValueError(f"rates {asdict(rates)} must be above 0")


def read_rates(kind: type[Read], value: Mapping[str, Any], *, of: str) -> Read:
    """Read rates from the values of `dataclasses.asdict`.

    Args:
        kind: the dataclass.
        of: device, for the message.

    Raises:
        SchemaError: the fields differ, or are no numbers above 0.
    """
    try:
        return kind(**{name: float(number) for name, number in value.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise SchemaError(f"rates of {of}: {error}") from error


@dataclass(frozen=True)
class Rates:
    """Rates of all threads together, and sizes of their caches.

    Args:
        flops: per second, of a product of dense matrices in cache.
        near: bytes per second of rows gathered from the private cache of a core.
        far: of rows gathered from the shared cache.
        memory: of streams through memory.
        near_bytes: private cache of one core.
        far_bytes: shared cache, of all threads together.
    """

    flops: float
    near: float
    far: float
    memory: float
    near_bytes: float
    far_bytes: float

    def __post_init__(self) -> None:
        check_rates(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Rates:
        """Read the values of `dataclasses.asdict`, as `read_rates`."""
        return read_rates(cls, value, of="a machine")


def machine_rates(cache: PlanCache, *, threads: int) -> Rates:
    """Look up the rates of this machine, or measure them once per process and store them unless it was busy."""
    found = get_rates(cache, threads=threads)
    if found is not None:
        return found
    measured, busy = _rates_in_process(threads)
    if not busy or cache.keep_busy:
        put_rates(cache, measured, threads=threads)
    return measured


def get_rates(cache: PlanCache, *, threads: int) -> Rates | None:
    """Look up the rates of this machine; None if they were not measured."""
    return cache.get("rates", _rates_key(threads), Rates.from_json)


def put_rates(cache: PlanCache, rates: Rates, *, threads: int) -> None:
    """Store the rates of this machine."""
    cache.put("rates", _rates_key(threads), asdict(rates), summary=rates_summary(rates, FUSED_SOURCES))


def rates_summary(rates: Any, sources: tuple[str, ...]) -> Summary:
    """Describe rates of a processor or a GPU."""
    return Summary(choice=f"{rates.flops / 1e9:.0f} GFLOP/s, {rates.memory / 1e9:.0f} GB/s from memory",
                   sources=sources)


def measure_rates(*, threads: int, clock: Callable[[], float] = time.perf_counter) -> Rates:
    """Measure with the kernels that the estimates are about, in some tenths of a second.

    Args:
        clock: wall seconds.
    """
    nothing = Pattern((DENSE_ROWS, DENSE_ROWS), np.zeros(DENSE_ROWS + 1, np.int64), np.empty(0, np.int32))
    dense = _seconds(GemmSpmm(inner=128), nothing, 128, threads, clock)
    near, far, memory = (_seconds(SpmmSpmm(), pattern, WIDTH, threads, clock) for pattern in (
        _gathers(NEAR_ROWS, 128, READS), _gathers(FAR_ROWS, FAR_ROWS, READS), _gathers(STREAMED_ROWS, 1, 1)))
    row, caches = 4 * WIDTH, Caches.here(threads)
    return Rates(
        flops=2 * DENSE_ROWS * 128 * 128 / dense, near=2 * NEAR_ROWS * READS * row / near,
        far=2 * FAR_ROWS * READS * row / far, memory=6 * STREAMED_ROWS * row / memory,  # C, D1 thrice, D twice
        near_bytes=caches.near_bytes, far_bytes=caches.far_bytes)


def _gathers(rows: int, reach: int, reads: int) -> Pattern:
    """Pattern whose rows read a column from each of `reads` equal parts of the `reach` columns around them."""
    part = reach // reads
    within = np.random.default_rng(0).integers(0, part, (rows, reads)) + part * np.arange(reads)
    columns = np.arange(rows)[:, None] // reach * reach + within
    return Pattern((rows, rows), reads * np.arange(rows + 1), columns.ravel())


def _seconds(op: GemmSpmm | SpmmSpmm, pattern: Pattern, width: int, threads: int, clock: Callable[[], float]) -> float:
    operands = op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), width, seed=0)
    executor = Executor(op, unfused_schedule(pattern, threads=threads), threads=threads, variant=Variant())
    call = executor.bind(operands, executor.result(operands))
    call()
    spent = []
    for _ in range(RUNS):
        start = clock()
        call()
        spent.append(clock() - start)
    return min(spent)


def _rates_key(threads: int) -> dict[str, Any]:
    return {"machine": machine_digest(), "kernels": kernels_digest(FUSED_SOURCES), "threads": threads}


@cache
def _rates_in_process(threads: int) -> tuple[Rates, str]:
    return watched(lambda: measure_rates(threads=threads), keep_busy=False)
