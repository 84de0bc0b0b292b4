"""Repetitions on two clocks: rows taken while the machine was stolen from us are retaken."""

import time
from collections.abc import Callable

from sparloom.measure import Measurement, TimingProtocol

__all__ = ["Clock", "take"]

Clock = Callable[[], float]


def take(
    run: Callable[[], None],
    timing: TimingProtocol,
    *,
    threads: int,
    slow_above: float,
    wall: Clock = time.perf_counter,
    processor: Clock = time.process_time,
) -> Measurement:
    """Warm up, then measure the repetitions of one round.

    Args:
        threads: how many run (or spin) while the kernel does.
        slow_above: a warm-up of more seconds than this is the only repetition.
        wall, processor: clocks in seconds.

    Returns:
        Wall seconds, with processor seconds of all threads; `stolen` if a repetition stayed suspicious after all
        retakes.
    """
    first = _once(run, wall, processor)
    kept: list[tuple[float, float]] = []
    if first[0] > slow_above:
        kept.append(first)
    stolen, retakes = False, timing.retakes
    while True:
        if kept and kept[-1][0] * threads > timing.steal_ratio * max(kept[-1][1], 1e-9):
            if retakes == 0:
                stolen = True
            else:
                kept.pop()
                retakes -= 1
        if len(kept) == (1 if first[0] > slow_above else timing.repetitions):
            break
        kept.append(_once(run, wall, processor))
    seconds, cpu_seconds = zip(*kept, strict=True)
    return Measurement(seconds, "wall", cpu_seconds=cpu_seconds, stolen=stolen)


def _once(run: Callable[[], None], wall: Clock, processor: Clock) -> tuple[float, float]:
    cpu, start = processor(), wall()
    run()
    return wall() - start, processor() - cpu
