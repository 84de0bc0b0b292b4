"""A short measurement: of many candidates, where those that fall behind drop out; of two, in turn."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Call", "Clock", "Effort", "Race", "Timer", "by_clock", "duel", "race"]

HOPELESS = 5  # times as slow as the best in the first run: not run again; who is first of all bears what all need

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Wall seconds."""

Call = Callable[[], None]
"""Runs a product once."""

Timer = Callable[[Call, int], float]
"""Runs a call so many times: mean seconds of a run, by whatever clock."""


@dataclass(frozen=True)
class Effort:
    """How much a decision may measure.

    Args:
        candidates: of one kind, at most.
        repetitions: of candidates that stay to the end.
        pairs: of repetitions of the last two, at least and at most.
        executions: of the product in a race or a duel, at most, ...
        seconds: ... and how long one may take. Two candidates run twice in any case.
        short_seconds: a repetition is as many runs as fit into this; they count as one execution.
        tolerance: who is so much slower than the best drops out after the first repetition; after n, it is an n-th.
            Least seconds are compared: a run may be interrupted, but is never faster than it can be.
    """

    candidates: int = 6
    repetitions: int = 5
    pairs: tuple[int, int] = (6, 24)
    executions: int = 50
    seconds: float = 1.0
    short_seconds: float = 0.5e-3
    tolerance: float = 0.2

    def __post_init__(self) -> None:
        if min(self.candidates, self.repetitions, self.executions, self.pairs[0]) < 1 or self.seconds <= 0:
            raise ValueError(f"{self}: candidates, repetitions, pairs, executions and seconds must be above 0")


@dataclass(frozen=True)
class Race:
    """What was measured.

    Args:
        seconds: of each candidate, one per repetition; none if it was not started, the first run if that
            was hopeless.
        executions: warm-up runs among them.
    """

    seconds: tuple[tuple[float, ...], ...]
    executions: int

    @property
    def winner(self) -> int:
        """The fastest of those measured most often: half of its repetitions are faster than half of any other's."""
        most = max(map(len, self.seconds))
        return min((place for place, taken in enumerate(self.seconds) if len(taken) == most),
                   key=lambda place: float(np.quantile(self.seconds[place], 0.25)))


def by_clock(clock: Clock) -> Timer:
    """Time runs by a clock that is read before the first and after the last."""
    def timed(call: Call, runs: int) -> float:
        start = clock()
        for _ in range(runs):
            call()
        return (clock() - start) / runs

    return timed


def race(calls: Sequence[Call], *, effort: Effort, clock: Clock, timer: Timer | None = None) -> Race:
    """Measure candidates in rounds, each in turn.

    A call that fails is left out, unless it is the first.

    Args:
        calls: the more promising ones first: where time is short the last are not started.
        clock: by which the race ends.
        timer: of runs; the clock unless given.
    """
    timed = timer or by_clock(clock)
    start, executions = clock(), 0
    seconds: list[list[float]] = [[] for _ in calls]
    runs: dict[int, int] = {}
    least: dict[int, float] = {}
    for place, call in enumerate(calls):
        if place >= 2 and (clock() - start > effort.seconds / 3 or 2 * executions >= effort.executions):
            break
        executions += 1
        try:
            least[place] = timed(call, 1)
        except Exception as error:
            if not place:
                raise
            log.warning("candidate %d fails and is left out: %r", place, error)
            continue
        runs[place] = _runs(least[place], effort)
    limit = HOPELESS * min(least.values())
    running = [place for place in runs if not place or least[place] <= limit]
    for place in least.keys() - running:
        seconds[place].append(least[place])
    for turn in range(effort.repetitions):
        if turn >= 1 and (clock() - start > effort.seconds or executions + len(running) > effort.executions):
            break
        shift = turn % len(running)
        for place in running[shift:] + running[:shift]:
            seconds[place].append(timed(calls[place], runs[place]))
            least[place] = min(least[place], seconds[place][-1])
            executions += 1
        limit = (1 + effort.tolerance / (turn + 1)) * min(least[place] for place in running)
        running = [place for place in running if least[place] <= limit]
    return Race(tuple(map(tuple, seconds)), executions)


def duel(
    rivals: Sequence[tuple[Call, Call]], *, decided: Callable[[Race], bool], effort: Effort, clock: Clock,
    timer: Timer | None = None,
) -> Race:
    """Measure two calls in turn until it is decided which to take.

    Args:
        rivals: the two, on each of the problems they meet on in turn.
        decided: asked after the least number of pairs, and after each further one.
        clock, timer: as in `race`.
    """
    start, timed = clock(), timer or by_clock(clock)
    runs = [[_runs(timed(call, 1), effort) for call in calls] for calls in rivals]
    seconds: tuple[list[float], list[float]] = ([], [])
    least, most = effort.pairs
    for pair in range(most):
        meeting = pair % len(rivals)
        for place in (0, 1) if pair % 2 else (1, 0):
            seconds[place].append(timed(rivals[meeting][place], runs[meeting][place]))
        taken = Race(tuple(map(tuple, seconds)), 2 * (pair + 1 + len(rivals)))
        if clock() - start > effort.seconds or taken.executions + 2 > effort.executions or (
                pair + 1 >= least and decided(taken)):
            break
    return taken


def _runs(seconds: float, effort: Effort) -> int:
    """How many runs of so many seconds make a repetition."""
    return max(1, int(effort.short_seconds / max(seconds, 1e-9)))
