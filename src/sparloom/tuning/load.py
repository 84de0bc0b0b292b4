"""Whether the processors were free while something was measured: on a busy machine the wrong candidate wins.

A thread that is ready to run and has to wait for a processor makes a kernel of several threads as slow as the thread
that waits longest, and a kernel of one thread wins that is several times slower on the machine alone. Linux counts the
seconds that each thread has waited (/proc/self/task/*/schedstat); elsewhere involuntary context switches stand for
them. Processors that are taken away altogether, by other virtual machines or by the limit of a container, are counted
in /proc/stat and in the cpu.stat of the control group.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Protocol

__all__ = ["Load", "LoadWatch", "NoLoad", "ProcessLoad", "tell_busy", "watch_load"]

log = logging.getLogger(__name__)

KEEP_BUSY = "SPARLOOM_KEEP_BUSY"

AGAIN, LATEST = 1.0, 600.0  # seconds after a decision on a busy machine until it is made anew, first and at most
WAITED, TAKEN = 0.05, 0.05  # shares of the seconds measured, above which a machine is busy
WAKING = 50e-6  # seconds that a thread may wait in one call: as long as it takes to wake it up
SLICE = 3e-3  # seconds that a thread waits after an involuntary context switch, as far as they are not counted
THREADS = 16  # of this process that are looked at, the first one and the newest
GROUPS = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))


class Load(Protocol):
    """Counts for how long processors were not there for this process; tests give numbers of their own."""

    def waits(self) -> Mapping[int, float]:
        """Count the seconds that each thread has been ready to run without a processor: thread -> seconds."""

    def taken(self) -> float:
        """Count the seconds for which the mean processor was taken away."""

    def refresh(self) -> None:
        """Count for threads, too, that were started since."""

    def close(self) -> None:
        """Free what counting needs."""


class ProcessLoad:
    """The load that the system tells of; where it tells of none, the machine counts as quiet."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._files: dict[int, int] = {}  # before any is open: an exception may end this at any point
        _open_files(self._files)

    def waits(self) -> Mapping[int, float]:
        """Count for up to 16 threads, or for the whole process; some microseconds."""
        waits = {}
        if os.getpid() == self._process:  # the files of a forked child are those of its parent
            for thread, file in self._files.items():
                with suppress(OSError, ValueError, IndexError):  # it has ended
                    waits[thread] = 1e-9 * int(os.pread(file, 100, 0).split()[1])
        if any(waits.values()):
            return waits
        return {0: SLICE * resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw}

    def taken(self) -> float:
        """Count seconds stolen from this virtual machine, and those for which its container was throttled."""
        return _stolen() + _throttled()

    def refresh(self) -> None:
        """Open the counters of the threads that there are now."""
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
    """A machine that counts as quiet, whatever runs there."""

    def waits(self) -> Mapping[int, float]:
        """Count nothing."""
        return {}

    def taken(self) -> float:
        """Count nothing."""
        return 0.0

    def refresh(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LoadWatch:
    """Adds up how much of the seconds measured processors were not there.

    Args:
        load: what counts; that of this process unless given.
        clock: wall seconds.
    """

    def __init__(self, load: Load | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._load, self._clock = load or ProcessLoad(), clock
        self._start, self._taken = clock(), self._load.taken()
        self._before: Mapping[int, float] = {}
        self._ended = -math.inf  # when the last measurement did
        self._waited = self._measured = 0.0

    def begin(self) -> None:
        """Begin a measurement; the counts at the end of the last one do where it has just ended."""
        if self._clock() - self._ended > WAKING:
            self._before = self._load.waits()

    def end(self, seconds: float) -> None:
        """End a measurement that took so many seconds; the thread that waited longest held it up."""
        before, after = self._before, self._load.waits()
        waited = max((now - before.get(thread, 0.0) for thread, now in after.items()), default=0.0)
        self._waited += waited if waited > WAKING else 0.0
        self._measured += seconds
        self._before, self._ended = after, self._clock()

    @contextmanager
    def over(self) -> Iterator[None]:
        """Measure what is done meanwhile, the threads that it starts included."""
        start = self._clock()
        self.begin()
        yield
        self._load.refresh()
        self.end(self._clock() - start)

    @property
    def held_up(self) -> bool:
        """Whether threads had to wait for more than a small part of the time."""
        return self._waited > WAITED * self._measured

    def reason(self) -> str:
        """Say why the machine was busy; "" if it was not."""
        if self.held_up:
            share = self._waited / max(self._measured, 1e-9)
            return f"threads waited for processors for {100 * min(1.0, share):.0f} % of the time"
        taken, elapsed = self._load.taken() - self._taken, max(self._clock() - self._start, 1e-9)
        if taken > TAKEN * elapsed:
            return f"processors were taken away for {1e3 * taken:.0f} ms of {1e3 * elapsed:.0f}"
        return ""

    def close(self) -> str:
        """Free what counting needs; gives the reason."""
        reason = self.reason()
        self._load.close()
        return reason


def watch_load(*, keep_busy: bool = False) -> LoadWatch:
    """Watch the load of this process, unless decisions are to be kept that were made on a busy machine.

    Args:
        keep_busy: they are, as they are where SPARLOOM_KEEP_BUSY=1.

    Raises:
        ValueError: SPARLOOM_KEEP_BUSY is neither 0 nor 1.
    """
    given = os.environ.get(KEEP_BUSY) or "0"
    if given not in ("0", "1"):
        raise ValueError(f"{KEEP_BUSY}={given!r}: give 0 or 1, or unset it")
    return LoadWatch(NoLoad() if keep_busy or given == "1" else ProcessLoad())


@cache
def tell_busy() -> None:
    """Say once per process that decisions are not kept."""
    log.info("the machine is busy: decisions are used by this process alone until they are made anew; %s=1 keeps them",
             KEEP_BUSY)


def _open_files(files: dict[int, int]) -> None:
    """Open the counters of some threads: thread -> file."""
    try:
        threads = sorted(map(int, os.listdir("/proc/self/task")))
    except OSError:
        return
    for thread in [*threads[:1], *threads[1:][-(THREADS - 1):]]:
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
    """Find the control group of this process, if its processors are limited."""
    return tuple(path for path in GROUPS if _figures(path).get("nr_periods"))


def _figures(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError):
        return {name: int(number) for name, number in map(str.split, path.read_text().splitlines())}
    return {}
