"""Repetitions on two clocks: those taken while the machine was stolen from us are retaken."""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparloom.measure import Measurement, TimingProtocol

__all__ = ["Clock", "Stopwatch", "keep_threads_awake", "processor_clock"]

SPIN = "10000000"  # turns that an idle thread waits before it sleeps, some 0.1 s

Clock = Callable[[], float]


class Stopwatch:
    """Collects the repetitions of one packed configuration over several visits.

    Args:
        run: executes the kernel once.
        threads: how many run (or spin) while the kernel does.
        processor, wall: clocks in seconds.
    """

    def __init__(
        self, run: Callable[[], None], timing: TimingProtocol, *, threads: int, processor: Clock,
        wall: Clock = time.perf_counter,
    ) -> None:
        self.timing = timing
        self.threads = threads
        self._run = run
        self._processor = processor
        self._wall = wall
        self._kept: list[tuple[float, float]] = []
        self._retakes = timing.retakes
        self._stolen = False
        self.warm_seconds = math.inf

    def warm_up(self, baseline: float, visits: int | None = None) -> int:
        """Run once and say how many visits are wanted; for none, that run is kept as the only repetition.

        Args:
            baseline: seconds of the default configuration, against which a slow one is told; infinity: nothing is slow.
            visits: what the first round decided, or None in the first round.
        """
        first = self._once()
        if visits is None:
            visits = self._visits(first[0], baseline)
        if visits == 0:
            while self._is_stolen(first) and self._retakes > 0:
                self._retakes -= 1
                first = self._once()
            self._keep(first)
        self.warm_seconds = first[0]
        return visits

    def _visits(self, seconds: float, baseline: float) -> int:
        if seconds <= max(self.timing.short_seconds, self.timing.slow_factor * baseline):
            return self.timing.repetitions
        return 1 if seconds <= self.timing.slow_factor**2 * baseline else 0

    def visit(self) -> None:
        """Take one repetition, or several of a short run: a share of the protocol's short_seconds."""
        share, spent, count = self.timing.short_seconds / self.timing.repetitions, 0.0, 0
        most = max(1, self.timing.most_repetitions // self.timing.repetitions)
        while count == 0 or (spent < share and count < most):
            latest = self._once()
            if self._is_stolen(latest) and self._retakes > 0:
                self._retakes -= 1
                continue
            self._keep(latest)
            spent, count = spent + latest[0], count + 1

    def measurement(self) -> Measurement:
        """Wall seconds with processor seconds of all threads; stolen if a suspicious repetition had to be kept."""
        seconds, cpu_seconds = zip(*self._kept, strict=True)
        return Measurement(seconds, "wall", cpu_seconds=cpu_seconds, stolen=self._stolen)

    def _once(self) -> tuple[float, float]:
        cpu, start = self._processor(), self._wall()
        self._run()
        return self._wall() - start, self._processor() - cpu

    def _is_stolen(self, repetition: tuple[float, float]) -> bool:
        return repetition[0] * self.threads > self.timing.steal_ratio * repetition[1]

    def _keep(self, repetition: tuple[float, float]) -> None:
        self._stolen |= self._is_stolen(repetition)
        self._kept.append(repetition)


def keep_threads_awake() -> None:
    """Let idle threads of the GNU OpenMP library spin for a while, unless GOMP_SPINCOUNT already says otherwise.

    A thread that waits for the others then counts as busy, so that wall and processor clocks differ only where the
    machine ran something else; and parallel loops inside serial ones start within a microsecond. The library reads the
    variable when it is loaded: where kernels ran before, its own (shorter) default stays.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN)


def processor_clock() -> Clock:
    """Make a clock of the processor seconds of all threads that this process has now.

    Linux: the sum of the threads' own clocks, exact at any moment. The clock of the process is not: what a thread has
    run on another processor enters it only at the next timer tick, up to 4 ms late.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return time.process_time
    # A clock of thread t is numbered ~t << 3 | 6, see clock_getcpuclockid(3) and linux/posix-timers.h.
    spent = {~int(task.name) << 3 | 6: 0 for task in tasks.iterdir()}

    def read() -> float:
        for clock in spent:
            with suppress(OSError):  # the thread has ended and spends no more
                spent[clock] = time.clock_gettime_ns(clock)
        return sum(spent.values()) * 1e-9

    return read
