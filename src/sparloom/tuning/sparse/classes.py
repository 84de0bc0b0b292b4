"""Classes of patterns: what runs best for patterns that are fresh but alike, learned from direct calls.

A sampler shows another pattern in every step, so no pattern is ever raced. But its patterns are alike: their rows,
nonzeros and widths, each within a factor of two, make a class. The calls of a class themselves are the measurements:

    some calls by the default -> for each alternative, calls by the default and by it in turn -> the best of all

Alternatives are configurations that read nothing of a pattern when they are bound, and another number of threads. One
that is slower in its first two calls is dropped, and one must be clearly faster in most pairs of calls to be chosen, so
a class costs a few calls at most. Choices are stored for later processes, and tested again after many calls. A machine
that was busy meanwhile decides nothing.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from threading import Lock
from typing import Any

from sparloom.forks import forkable
from sparloom.space import Config
from sparloom.tuning.cache import PlanCache, Summary

__all__ = ["Alternative", "ClassStore", "PatternClass", "alternatives"]

WARM_CALLS = 8  # by the default, before anything is compared
PAIRS = 8  # of calls that compare an alternative with the default
MAX_PAIRS = 3 * PAIRS  # with those in which a call was held up
EARLY_PAIRS, EARLY = 2, 1.1  # an alternative that is slower by this factor after so many pairs is dropped
HELD_UP = 3.0  # a call that takes so many times the shortest one waited for something
FASTER, WINS = 0.93, 7 / 8  # median ratio to the default of what is chosen, and the share of pairs that it must win
TESTED_AGAIN = 2000  # calls after which a choice is compared again
RETRY, MAX_RETRY = 256, 1 << 16  # calls until a busy machine is asked again; doubled each time
SWITCHES, SWITCHES_PER_SECOND = 2, 20  # involuntary switches of threads that an idle machine may have

Alternative = tuple[Config, int]
"""A configuration and its threads."""

CHANGES: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "spmm": ({"prefetch": 0}, {"prefetch": 8}, {"stream": 0}),
    "spmm_max": ({"prefetch": 0}, {"prefetch": 8}),
    "sddmm": ({"group": 1}, {"group": 4}, {"group": 16}, {"prefetch": 0}, {"prefetch": 8}),
    "attention": ({"prefetch": 0}, {"prefetch": 4}),
}
"""Operation -> changes of the default configuration that may help, and that need no knowledge of the pattern."""


def alternatives(op: str, default: Config, threads: int, *, others: Sequence[int]) -> list[Alternative]:
    """List the default of an operation and what may be faster.

    Args:
        threads: of the default.
        others: numbers of threads that may be faster.
    """
    changed = [default.replace(**change) for change in CHANGES.get(op, ())
               if all(default[name] != value for name, value in change.items())]
    return [(default, threads), *((config, threads) for config in changed), *((default, count) for count in others)]


class ClassStore:
    """Keeps the choices of classes in the decision cache.

    Args:
        signature: what decisions depend on besides the class: machine, kernels.
    """

    def __init__(self, cache: Callable[[], PlanCache], signature: Mapping[str, Any], sources: Sequence[str]) -> None:
        self._cache, self._signature, self._sources = cache, signature, tuple(sources)

    def get(self, key: Mapping[str, Any], arms: Sequence[Alternative]) -> int | None:
        """Look up which of the alternatives was chosen; None if none was, or one that there is no more."""
        found = self._cache().get("class", self._key(key))
        names = [_name(arm) for arm in arms]
        return names.index(found["choice"]) if found and found.get("choice") in names else None

    def put(self, key: Mapping[str, Any], arm: Alternative, speedup: float) -> None:
        """Store a choice."""
        shape = f"{key['rows']} rows, {key['nonzeros']} nonzeros, {key['widths']}"
        self._cache().put("class", self._key(key), {"choice": _name(arm)}, summary=Summary(
            key["op"], shape, _name(arm), "fresh patterns of this class", speedup, self._sources))

    def _key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        return {**key, **self._signature}


class PatternClass:
    """Patterns that are alike; tells which alternative computes the next call.

    Python threads may share it: a call that is not counted, as another one is being recorded, does no harm.

    Args:
        key: names the class in the store.
        arms: alternatives, the default first.
        switches: counts the involuntary switches of threads.
        clock: wall seconds.
    """

    def __init__(
        self, key: Mapping[str, Any], arms: Sequence[Alternative], store: ClassStore, *,
        switches: Callable[[], int] = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arms = arms
        self.turn = 0  # the alternative that computes the next call
        self.learning = len(arms) > 1  # whether its seconds are wanted
        self._key, self._store, self._switches, self._clock = key, store, switches, clock
        self._calls_left = WARM_CALLS if self.learning else -1  # until something begins; below 0: never
        self._retry = RETRY
        self._warm = False
        self._compared: list[int] = []  # alternatives that are still to be compared, the current one first
        self._faster: list[tuple[float, int]] = []  # ratios of alternatives that won
        self._default: float | None = None  # seconds of the first call of a pair
        self._pairs: list[tuple[float, float]] = []
        self._begun = 0, 0.0  # switches and seconds
        self._recording = forkable(Lock())

    def next(self) -> int:
        """Count a call and return its alternative."""
        if self._calls_left >= 0:
            self._calls_left -= 1
            if self._calls_left < 0 and not self._alone(self._begin):
                self._calls_left = 0  # the next call begins
        return self.turn

    def record(self, arm: int, seconds: float) -> None:
        """Take the seconds of a call, in proportion to its work."""
        self._alone(lambda: self._record(arm, seconds))

    def _alone(self, change: Callable[[], None]) -> bool:
        """Change the state; returns False if another thread, or a call that this one interrupts, is doing so."""
        if not self._recording.acquire(blocking=False):
            return False
        try:
            change()
        finally:
            self._recording.release()
        return True

    def _record(self, arm: int, seconds: float) -> None:
        if not self._compared:
            return
        if arm == 0:
            self._default, self.turn = seconds, self._compared[0]
            return
        if arm != self._compared[0] or self._default is None:
            return
        self._pairs.append((self._default, seconds))
        self._default, self.turn = None, 0
        ratio = _verdict(self._pairs)
        if ratio is None:
            return
        if ratio < 1:
            self._faster.append((ratio, arm))
        self._compared.pop(0)
        self._pairs = []
        if not self._compared:
            self._end()

    def _begin(self) -> None:
        """Compare all alternatives, or test a choice again; the first time, look up what is known."""
        if not self._warm:
            self._warm = True
            known = self._store.get(self._key, self.arms)
            if known is not None:
                self._settle(known)
                return
        self._compared = [self.turn] if self.turn else list(range(1, len(self.arms)))
        self._faster, self._pairs, self._default = [], [], None
        self.turn, self.learning = 0, True
        self._begun = self._switches(), self._clock()

    def _end(self) -> None:
        switches, start = self._begun
        allowed = SWITCHES + SWITCHES_PER_SECOND * (self._clock() - start)
        if self._switches() - switches > allowed:
            self.turn, self.learning = 0, False
            self._calls_left, self._retry = self._retry, min(2 * self._retry, MAX_RETRY)
            return
        ratio, arm = min(self._faster, default=(1.0, 0))
        self._store.put(self._key, self.arms[arm], 1 / ratio)
        self._settle(arm)

    def _settle(self, arm: int) -> None:
        self.turn, self.learning = arm, False
        self._calls_left = TESTED_AGAIN if arm else -1


def _verdict(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the ratio of an alternative to the default, 1 if it is not clearly faster; None: it is not known yet.

    Args:
        pairs: seconds of the default and of the alternative.
    """
    shortest = [min(column) for column in zip(*pairs, strict=True)]
    if len(pairs) >= EARLY_PAIRS and shortest[1] > EARLY * shortest[0]:
        return 1.0
    usable = [pair for pair in pairs if all(seconds <= HELD_UP * least for seconds, least in zip(
        pair, shortest, strict=True))]
    if len(usable) < PAIRS:
        return None if len(pairs) < MAX_PAIRS else 1.0
    ratio = median(other / default for default, other in usable)
    wins = sum(other < default for default, other in usable)
    return ratio if ratio <= FASTER and wins >= WINS * len(usable) else 1.0


def _name(arm: Alternative) -> str:
    config, threads = arm
    return f"{config.key}, {threads} thread{'s' if threads > 1 else ''}"
