"""Clocks of the processor.

A `Stopwatch` takes repetitions on the wall clock and the processor clock, and retakes those during which other
processes or machines took our processors (steal).
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparloom.measure import Kind, Measurement, TimingProtocol

SPINS = {"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "1"}
"""How long idle threads of OpenMP spin: iterations of GCC's, about a millisecond; milliseconds of LLVM's."""

Clock = Callable[[], float]


class Repetition(NamedTuple):
    """Wall seconds of one run and processor seconds of all threads; means if there are several `runs`."""

    wall: float
    processor: float
    runs: int = 1


Repeat = Callable[[float], Repetition]
"""Runs a kernel; repeats it without a pause, if it can, until the given seconds have passed."""


class Stopwatch:
    """Collects the repetitions of one configuration over several visits.

    Args:
        repeat: executes the kernel; see `one_by_one`.
        threads: how many run (or spin) while the kernel does.
        kind: of the wall seconds; "device" for the clock of a device, which has no steal.
    """

    def __init__(self, repeat: Repeat, timing: TimingProtocol, *, threads: int, kind: Kind = "wall") -> None:
        self.timing = timing
        self.threads = threads
        self.kind = kind
        self._repeat = repeat
        self._kept: list[Repetition] = []
        self._retakes = timing.retakes
        self._stolen = False
        self.warm_seconds = math.inf

    def warm_up(self, baseline: float, visits: int | None = None) -> int:
        """Run once and return the number of visits to make; if it is 0, that run is kept as the only repetition.

        A slow run is repeated once, because an interruption of a millisecond looks the same.

        Args:
            baseline: seconds that decide what is slow, such as those of the default configuration; infinity: nothing
                is.
            visits: number that the first round decided, or None in the first round.
        """
        first = self._repeat(0.0)
        if visits is None:
            visits = self._visits(first.wall, baseline)
            if visits < self.timing.repetitions:
                first = min(first, self._repeat(0.0), key=lambda repetition: repetition.wall)
                visits = self._visits(first.wall, baseline)
        if visits == 0:
            while self._is_stolen(first) and self._retakes > 0:
                self._retakes -= 1
                first = self._repeat(0.0)
            self._keep(first)
        self.warm_seconds = first.wall
        return visits

    def _visits(self, seconds: float, baseline: float) -> int:
        if seconds <= max(self.timing.short_seconds, self.timing.slow_factor * baseline):
            return self.timing.repetitions
        return 1 if seconds <= self.timing.slow_factor**2 * baseline else 0

    def visit(self) -> None:
        """Take one repetition, or several of a short run to fill a share of the protocol's short_seconds."""
        share, spent, count = self.timing.short_seconds / self.timing.repetitions, 0.0, 0
        max_count = max(1, self.timing.most_repetitions // self.timing.repetitions)
        while count == 0 or (spent < share and count < max_count):
            latest = self._repeat(share)
            if self._is_stolen(latest) and self._retakes > 0:
                self._retakes -= 1
                continue
            self._keep(latest)
            spent, count = spent + latest.wall * latest.runs, count + 1

    def measurement(self) -> Measurement:
        """Join wall seconds and processor seconds of all threads; marked if a repetition with steal had to be kept."""
        seconds, cpu_seconds, _ = zip(*self._kept, strict=True)
        return Measurement(seconds, self.kind, cpu_seconds=cpu_seconds if self.kind == "wall" else (),
                           stolen=self._stolen)

    def _is_stolen(self, repetition: Repetition) -> bool:
        return self.kind == "wall" and repetition.wall * self.threads > self.timing.steal_ratio * repetition.processor

    def _keep(self, repetition: Repetition) -> None:
        self._stolen |= self._is_stolen(repetition)
        self._kept.append(repetition)


def one_by_one(run: Callable[[], None], processor: Clock, wall: Clock = time.perf_counter) -> Repeat:
    """Read both clocks, in seconds, around every single run of a kernel."""
    def repeat(_: float) -> Repetition:
        cpu, start = processor(), wall()
        run()
        return Repetition(wall() - start, processor() - cpu)

    return repeat


def in_series(run: Callable[[], None], processor: Clock, wall: Clock = time.perf_counter) -> Repeat:
    """Read both clocks around a series of runs that is long enough, or around one run if that is."""
    def repeat(seconds: float) -> Repetition:
        runs = 1
        while True:
            cpu, start = processor(), wall()
            for _ in range(runs):
                run()
            spent = wall() - start
            if spent >= seconds:
                return Repetition(spent / runs, (processor() - cpu) / runs, runs)
            runs = min(max(2 * runs, int(1.05 * runs * seconds / max(spent, 1e-9))), 16 * runs)

    return repeat


def keep_threads_awake() -> None:
    """Let idle threads of OpenMP spin for about a millisecond, unless the environment has settings of its own.

    A thread that waits for the others then counts as busy, so that wall and processor clocks differ only while the
    machine ran something else; and parallel loops inside serial ones start within a microsecond. Do not spin
    longer: other OpenMP runtimes (a benchmark loads four) would occupy processors while the next library is timed;
    `interleaved` waits for ten times as long. OpenMP reads the variables when it is loaded: if kernels
    ran before, its own defaults stay.
    """
    for name, value in SPINS.items():
        os.environ.setdefault(name, value)


def processor_clock() -> Clock:
    """Make a clock of the processor seconds of all threads that this process has now.

    On Linux it sums the clocks of the threads, which are exact at any moment. The clock of the process is not: time of
    a thread on another processor enters it only at the next timer tick, up to 4 ms late.
    """
    spent = dict.fromkeys(thread_clocks(), 0)
    if not spent:
        return time.process_time

    def read() -> float:
        for clock in spent:
            with suppress(OSError):  # the thread has ended and spends no more
                spent[clock] = time.clock_gettime_ns(clock)
        return sum(spent.values()) * 1e-9

    return read


def thread_clocks() -> tuple[int, ...]:
    """List the processor clocks of all threads that this process has now, for clock_gettime; empty except on Linux.

    A clock of thread t is numbered ~t << 3 | 6, see clock_getcpuclockid(3) and linux/posix-timers.h.
    """
    tasks = Path("/proc/self/task")
    return tuple(~int(task.name) << 3 | 6 for task in tasks.iterdir()) if tasks.is_dir() else ()
