"""One round of measurements: all calls on the same arrays, their repetitions interleaved.

The speed of a machine drifts within tenths of a second. So all calls are run and checked once, then all of them are
visited for their first repetition, in random order, then for their second: what drifts meets all alike.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.measure import Measurement
from sparloom.platforms.clock import Stopwatch
from sparloom.space import Config

__all__ = ["Call", "Check", "Contender", "sweep"]

log = logging.getLogger(__name__)

Call = Callable[[], None]
"""A kernel with all its arguments; overwrites the result. A `NativeCall` is timed without Python in between."""

Check = Callable[[Any], None]
"""Compares a result, as the calls leave it, with the oracle; raises AssertionError."""


@dataclass(frozen=True)
class Contender:
    """A call and the configuration under which its seconds are known."""

    config: Config
    call: Call


def sweep(
    contenders: Sequence[Contender], result: Any, check: Check, *, watch: Callable[[Call], Stopwatch],
    rng: np.random.Generator,
) -> Iterator[tuple[Config, Measurement]]:
    """Check and measure all contenders; nothing is yielded before the last repetition, so the caller disturbs none.

    A contender is slow (see `TimingProtocol`) in comparison with the fastest one so far.

    Args:
        result: what all of them overwrite; an array of the host or of a device.
        watch: makes the stopwatch of a call that has run once.
    """
    best = math.inf
    started: list[tuple[Contender, Stopwatch, int]] = []
    wrong: dict[Config, Measurement] = {}
    for place in rng.permutation(len(contenders)):
        contender = contenders[place]
        result.fill(np.nan)
        contender.call()
        stopwatch = watch(contender.call)
        fault = _fault(check, result)
        if fault is not None:
            log.error("%s computes something else than the oracle: %s", contender.config, fault)
            wrong[contender.config] = Measurement.failed(f"wrong result: {fault}", stopwatch.kind)
            continue
        visits = stopwatch.warm_up(best)
        best = min(best, stopwatch.warm_seconds)
        started.append((contender, stopwatch, visits))
    for turn in range(max((visits for _, _, visits in started), default=0)):
        for place in rng.permutation(len(started)):
            _, stopwatch, visits = started[place]
            if turn < visits:
                stopwatch.visit()
    yield from wrong.items()
    for contender, stopwatch, _ in started:
        yield contender.config, stopwatch.measurement()


def _fault(check: Check, result: Any) -> str | None:
    try:
        check(result)
    except AssertionError as error:
        return str(error)
    return None
