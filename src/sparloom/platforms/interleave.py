"""Several methods timed side by side in one run, so that what drifts meets all alike."""

import math
import time
from collections.abc import Callable, Collection, Mapping

from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms.clock import Clock, Repeat, Stopwatch, in_series, processor_clock

__all__ = ["interleaved", "interleaved_on_device"]

SETTLE = 0.03  # seconds; idle threads of GNU OpenMP keep a processor busy for some milliseconds


def interleaved(
    methods: Mapping[str, Callable[[], None]], timing: TimingProtocol, *, threads: int, serial: Collection[str] = (),
    settle: float = SETTLE, processor: Clock | None = None, wall: Clock = time.perf_counter,
) -> dict[str, Measurement]:
    """Time methods in turn, A B C, then B C A, then C A B, until each has the protocol's repetitions.

    Every method first runs once, which nobody times: threads begin, pages are touched. Every repetition begins with
    runs that are not timed, because the method before has left its own data in the caches, and its threads may still
    spin; that of a short method is the mean of a series that lasts its share of `timing.short_seconds`. A
    method is slow (see `TimingProtocol`) against the fastest of those named before it, so name a fast one first.

    Args:
        methods: name -> one run with all its arguments. Results are checked by the caller, before.
        timing: its `rounds` are the caller's: one call is one round.
        threads: of every method but those in `serial`, which run on one.
        settle: seconds of runs before a repetition, at least one run. Idle threads of OpenBLAS spin for 0.13 s.
        processor, wall: clocks in seconds; that of all threads there are after the first runs, unless given.

    Returns:
        A measurement for every method, in the order given; wall and processor seconds.
    """
    for run in methods.values():
        run()
    clock = processor or processor_clock()
    watches = {name: Stopwatch(in_series(run, clock, wall), timing, threads=1 if name in serial else threads)
               for name, run in methods.items()}
    return _in_turn(watches, timing, lambda name: _settle(methods[name], settle, wall))


def interleaved_on_device(
    methods: Mapping[str, Callable[[], None]], timing: TimingProtocol, repeat: Callable[[Callable[[], None]], Repeat],
) -> dict[str, Measurement]:
    """Time methods in turn as `interleaved` does, by the clock of a device.

    Args:
        repeat: makes what times single runs, such as `Gpu.repeat`, of a call that only asks the device.

    Returns:
        A measurement for every method, in the order given; seconds of the device.
    """
    for run in methods.values():
        run()
    watches = {name: Stopwatch(repeat(run), timing, threads=1, kind="device") for name, run in methods.items()}
    return _in_turn(watches, timing, lambda name: methods[name]())


def _in_turn(
    watches: Mapping[str, Stopwatch], timing: TimingProtocol, prepare: Callable[[str], None],
) -> dict[str, Measurement]:
    visits, best = {}, math.inf
    for name, watch in watches.items():
        prepare(name)
        visits[name] = watch.warm_up(best)
        best = min(best, watch.warm_seconds)
    order = list(watches)
    for turn in range(timing.repetitions):
        start = turn % max(1, len(order))
        for name in order[start:] + order[:start]:
            if turn < visits[name]:
                prepare(name)
                watches[name].visit()
    return {name: watch.measurement() for name, watch in watches.items()}


def _settle(run: Callable[[], None], seconds: float, wall: Clock) -> None:
    start = wall()
    run()
    while wall() - start < seconds:
        run()
