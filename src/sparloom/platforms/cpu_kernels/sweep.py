"""One round of measurements: all calls on the same arrays, their repetitions interleaved.

The speed of a machine drifts within tenths of a second. So all calls are run and checked once, then all of them are
visited for their first repetition, in random order, then for their second: what drifts meets all alike.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.jit import NativeCall
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms.clock import Repeat, Stopwatch, in_series, processor_clock, thread_clocks
from sparloom.platforms.cpu_kernels.family import Call, Check
from sparloom.platforms.cpu_kernels.native import repeated
from sparloom.space import Config

__all__ = ["Contender", "sweep"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contender:
    """A call and the configuration under which its seconds are known."""

    config: Config
    call: Call


def sweep(
    contenders: Sequence[Contender], result: np.ndarray, check: Check, *, timing: TimingProtocol, threads: int,
    rng: np.random.Generator,
) -> Iterator[tuple[Config, Measurement]]:
    """Check and measure all contenders; nothing is yielded before the last repetition, so the caller disturbs none.

    A contender is slow (see `TimingProtocol`) in comparison with the fastest one so far.

    Args:
        result: what all of them overwrite.
    """
    best = math.inf
    started: list[tuple[Contender, Stopwatch, int]] = []
    wrong: dict[Config, Measurement] = {}
    for place in rng.permutation(len(contenders)):
        contender = contenders[place]
        result.fill(np.nan)
        contender.call()
        fault = _fault(check, result)
        if fault is not None:
            log.error("%s computes something else than the oracle: %s", contender.config, fault)
            wrong[contender.config] = Measurement.failed(f"wrong result: {fault}", "wall")
            continue
        watch = Stopwatch(_repeat(contender.call), timing, threads=threads)
        visits = watch.warm_up(best)
        best = min(best, watch.warm_seconds)
        started.append((contender, watch, visits))
    for turn in range(timing.repetitions):
        for place in rng.permutation(len(started)):
            _, watch, visits = started[place]
            if turn < visits:
                watch.visit()
    yield from wrong.items()
    for contender, watch, _ in started:
        yield contender.config, watch.measurement()


def _repeat(call: Call) -> Repeat:
    """Threads have begun with the first run, so their clocks exist."""
    return repeated(call, thread_clocks()) if isinstance(call, NativeCall) else in_series(call, processor_clock())


def _fault(check: Check, result: np.ndarray) -> str | None:
    try:
        check(result)
    except AssertionError as error:
        return str(error)
    return None
