"""Repetitions on two clocks: rows taken while the machine was stolen from us are retaken."""

import time
from collections.abc import Callable
from pathlib import Path

from sparloom.measure import Measurement, TimingProtocol

__all__ = ["Clock", "processor_clock", "take"]

Clock = Callable[[], float]


def take(
    run: Callable[[], None],
    timing: TimingProtocol,
    *,
    threads: int,
    slow_above: float,
    processor: Clock,
    wall: Clock = time.perf_counter,
) -> Measurement:
    """Warm up, then measure the repetitions of one round.

    Args:
        threads: how many run (or spin) while the kernel does.
        slow_above: a warm-up of more seconds than this (and than the protocol's short_seconds) is the only repetition.
        processor, wall: clocks in seconds.

    Returns:
        Wall seconds, with processor seconds of all threads; `stolen` if a repetition stayed suspicious after all
        retakes.
    """
    warm_up = _once(run, wall, processor)
    only = warm_up[0] > max(slow_above, timing.short_seconds)
    kept: list[tuple[float, float]] = []
    spent, retakes, stolen = 0.0, timing.retakes, False
    while not kept or not (only or _is_enough(len(kept), spent, timing)):
        latest = warm_up if only and retakes == timing.retakes else _once(run, wall, processor)
        if latest[0] * threads > timing.steal_ratio * latest[1]:
            if retakes > 0:
                retakes -= 1
                continue
            stolen = True
        kept.append(latest)
        spent += latest[0]
    seconds, cpu_seconds = zip(*kept, strict=True)
    return Measurement(seconds, "wall", cpu_seconds=cpu_seconds, stolen=stolen)


def _is_enough(count: int, spent: float, timing: TimingProtocol) -> bool:
    if count < timing.repetitions:
        return False
    return spent >= timing.short_seconds or count >= timing.most_repetitions


def processor_clock() -> Clock:
    """Make a clock of the processor seconds of all threads that this process has now.

    Linux: the sum of the threads' own clocks, exact at any moment. The clock of the process is not: what a thread has
    run on another processor enters it only at the next timer tick, up to 4 ms late.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return time.process_time
    # A clock of thread t is numbered ~t << 3 | 6, see clock_getcpuclockid(3) and linux/posix-timers.h.
    clocks = [~int(task.name) << 3 | 6 for task in tasks.iterdir()]

    def read() -> float:
        return sum(time.clock_gettime_ns(clock) for clock in clocks) * 1e-9

    return read


def _once(run: Callable[[], None], wall: Clock, processor: Clock) -> tuple[float, float]:
    cpu, start = processor(), wall()
    run()
    return wall() - start, processor() - cpu
