"""Own calls and those of peers timed in turn; peers that fail, or are far from the fastest one, are noted."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sparloom.errors import Unsupported
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import interleaved

__all__ = ["noted", "seconds_of", "side_by_side"]

Call = Callable[[], Any]
FAILURES = (Unsupported, AssertionError, MemoryError, RuntimeError, ValueError)


@contextmanager
def noted(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Note that a peer fails: that it is not here, is wrong, has no memory, or whatever else its library says.

    Args:
        failed: peer -> why.
    """
    try:
        yield
    except FAILURES as error:
        failed[name] = f"{type(error).__name__}: {error}"


def side_by_side(
    own: Mapping[str, Call], peers: Mapping[str, Call], failed: dict[str, str], timing: TimingProtocol, *,
    threads: int, serial: Collection[str] = (),
) -> dict[str, Measurement]:
    """Time calls that have run before in turn.

    A peer that takes over `timing.slow_factor` times as long as the fastest one, twice, is not among them: the less of
    these two runs is its measurement. So no peer that could be the best of a case is timed otherwise than we are.

    Args:
        failed: peer -> why, to which those are added that fail now.
        threads, serial: as of `interleaved`.
    """
    looks: dict[str, float] = {}
    for name, call in peers.items():
        with noted(name, failed):
            looks[name] = seconds_of(call)
    limit, once = timing.slow_factor * min(looks.values(), default=math.inf), {}
    for name in [name for name, seconds in looks.items() if seconds > limit]:
        with noted(name, failed):
            looks[name] = min(looks[name], seconds_of(peers[name]))
            if looks[name] > limit:
                once[name] = Measurement((looks[name],), "wall")
    timed = {name: call for name, call in peers.items() if name not in once and name not in failed}
    taken = interleaved({**own, **timed}, replace(timing, slow_factor=math.inf), threads=threads, serial=serial)
    return {**taken, **once}


def seconds_of(call: Call) -> float:
    """Time one run."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
