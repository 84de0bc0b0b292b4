"""Measurement races: many candidates in rounds, or two in turn; and what they decide.

`race`: candidates in rounds; those that fall behind drop out. `duel`: the winner and the best baseline in turn, until
the `Guardrail` accepts or refuses the winner. `Decision`: evidence.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal, get_args

import numpy as np

from sparloom.errors import SchemaError

Origin = Literal["rule", "measured"]

NORMAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers
MEDIAN_ERROR = 1.2533  # standard errors of the median in one of the mean, likewise
TICK = 1e-9  # seconds; a clock that cannot resolve so little says 0

HOPELESS = 5  # times as slow as the best in the first run: not run again; the first candidate pays for cold caches

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Wall seconds."""

Call = Callable[[], None]
"""Runs a product once."""

Timer = Callable[[Call, int], float]
"""Runs a call so many times; returns the mean seconds of a run, by its own clock."""


@dataclass(frozen=True)
class Trial:
    """One candidate of a measurement.

    Args:
        candidate: key of its configuration, or name of a library.
        seconds: one per repetition; none if the time did not suffice to start it.
    """

    candidate: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Decision:
    """The evidence for a choice.

    Args:
        origin: "rule" if no candidate was measured beside what runs in any case (unfused loops, or the default kernel),
            else "measured".
        reason: in words.
        trials: a race, including candidates that were not started, then the duel of its winner with the best baseline.
        executions: runs that the decision took, including those of baselines; online, calls of the program.
        seconds: total, with orders, schedules and estimates; online, what calls took longer than those of the winner.
        from_cache: it was made before, by this or another process.
    """

    origin: Origin
    reason: str
    trials: tuple[Trial, ...] = ()
    executions: int = 0
    seconds: float = 0.0
    from_cache: bool = False

    def speedup(self, chosen: str) -> float | None:
        """Seconds of the baseline over those of the choice in the final duel; None if there was none.

        Args:
            chosen: its name among the trials.
        """
        if len(self.trials) < 3:
            return None
        *before, challenger, reference = self.trials
        if not {challenger.candidate, reference.candidate} <= {trial.candidate for trial in before}:
            return None
        if chosen == reference.candidate:
            return 1.0
        if not min(challenger.seconds, default=0.0) > 0:
            raise ValueError(f"seconds {challenger.seconds}")
        return float(np.median(np.divide(reference.seconds, challenger.seconds)))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values, without `from_cache`."""
        return {name: value for name, value in asdict(self).items() if name != "from_cache"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Decision:
        """Read the values of `to_json`.

        Raises:
            SchemaError: a field is missing, unknown or of another type.
        """
        try:
            trials = tuple(Trial(str(each["candidate"]), tuple(map(float, each["seconds"])))
                           for each in value["trials"])
            decision = cls(**{**value, "trials": trials}, from_cache=True)
        except (TypeError, KeyError, ValueError) as error:
            raise SchemaError(f"a decision does not have its fields: {error!r}") from error
        if decision.origin not in get_args(Origin) or not isinstance(decision.reason, str):
            raise SchemaError(f"origin {decision.origin!r} of a decision is not one of {', '.join(get_args(Origin))}")
        return decision


@dataclass(frozen=True)
class Verdict:
    """Seconds of the challenger over those of the baseline.

    Args:
        ratio: the larger of two: median over pairs, and least over least.
        noise: standard error of the median.
        sure: more pairs would hardly change the verdict.
    """

    accepted: bool
    ratio: float
    noise: float
    sure: bool

    @property
    def text(self) -> str:
        """The verdict in words."""
        return (f"{'accepted' if self.accepted else 'refused'}: {self.ratio:.3f} of the seconds of the baseline, "
                f"standard error {self.noise:.3f}")


@dataclass(frozen=True)
class Guardrail:
    """Accepts a challenger only if it is faster than the baseline beyond doubt.

    Args:
        alpha: its seconds may be at most this share of the baseline's, ...
        errors: ... and less by so many standard errors.
    """

    alpha: float = 0.97
    errors: float = 1.0

    def judge(self, challenger: Sequence[float], baseline: Sequence[float]) -> Verdict:
        """Compare the seconds of as many repetitions of each, taken in turn."""
        ratios = [one / max(other, TICK) for one, other in zip(challenger, baseline, strict=True)]
        middle = median(ratios)
        spread = NORMAL * median(abs(ratio - middle) for ratio in ratios)
        noise = MEDIAN_ERROR * spread / math.sqrt(len(ratios))
        ratio = max(middle, min(challenger) / max(min(baseline), TICK))
        accepted = ratio + self.errors * noise <= self.alpha
        return Verdict(accepted, ratio, noise, sure=abs(ratio - self.alpha) > 2 * noise)


@dataclass(frozen=True)
class MeasurementBudget:
    """Limits on what a decision may measure.

    Args:
        candidates: of one kind, at most.
        repetitions: of candidates that stay to the end.
        pairs: of repetitions of the last two, at least and at most.
        executions: of the product in a race or a duel, at most, ...
        seconds: ... and how long one may take. Two candidates run twice in any case.
        short_seconds: a repetition consists of as many runs as fit into this; they count as one execution.
        tolerance: a candidate that is slower than the best by more than this share drops out after the first
            repetition; after n, by an n-th of it. Least seconds are compared, as runs may be interrupted.
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
    """Measurements of all candidates of a race.

    Args:
        seconds: of each candidate, one per repetition; none if it was not started, the first run if that was hopeless.
        executions: including warm-up runs.
    """

    seconds: tuple[tuple[float, ...], ...]
    executions: int

    @property
    def winner(self) -> int:
        """Index of the fastest, by the lower quartile, among the candidates with the most repetitions."""
        most = max(map(len, self.seconds))
        return min((index for index, taken in enumerate(self.seconds) if len(taken) == most),
                   key=lambda index: float(np.quantile(self.seconds[index], 0.25)))


@dataclass(frozen=True)
class Outcome:
    """Outcome of a race and a duel.

    Args:
        chosen: index of the winner if the guardrail accepted it, else of the baseline.
        duel: of the winner and the baseline.
    """

    chosen: int
    duel: Race
    verdict: Verdict
    trials: tuple[Trial, ...]


def by_clock(clock: Clock) -> Timer:
    """Time runs by a clock that is read before the first and after the last one."""
    def timed(call: Call, runs: int) -> float:
        start = clock()
        for _ in range(runs):
            call()
        return (clock() - start) / runs

    return timed


def race(calls: Sequence[Call], *, effort: MeasurementBudget, clock: Clock, timer: Timer | None = None) -> Race:
    """Measure candidates in rounds, each in turn.

    A call that fails is left out, unless it is the first.

    Args:
        calls: the more promising ones first: if time runs out, the last ones are not started.
        clock: limits the race.
        timer: of runs; the clock unless given.
    """
    timed = timer or by_clock(clock)
    start, executions = clock(), 0
    seconds: list[list[float]] = [[] for _ in calls]
    runs: dict[int, int] = {}
    least: dict[int, float] = {}
    for index, call in enumerate(calls):
        if index >= 2 and (clock() - start > effort.seconds / 3 or 2 * executions >= effort.executions):
            break
        executions += 1
        try:
            least[index] = timed(call, 1)
        except Exception as error:
            if not index:
                raise
            log.warning("candidate %d fails and is left out: %r", index, error)
            continue
        runs[index] = _runs(least[index], effort)
    limit = HOPELESS * min(least.values())
    running = [index for index in runs if not index or least[index] <= limit]
    for index in least.keys() - running:
        seconds[index].append(least[index])
    for turn in range(effort.repetitions):
        if turn >= 1 and (clock() - start > effort.seconds or executions + len(running) > effort.executions):
            break
        shift = turn % len(running)
        for index in running[shift:] + running[:shift]:
            seconds[index].append(timed(calls[index], runs[index]))
            least[index] = min(least[index], seconds[index][-1])
            executions += 1
        limit = (1 + effort.tolerance / (turn + 1)) * min(least[index] for index in running)
        running = [index for index in running if least[index] <= limit]
    return Race(tuple(map(tuple, seconds)), executions)


def duel(
    pairs: Sequence[tuple[Call, Call]], *, decided: Callable[[Race], bool], effort: MeasurementBudget, clock: Clock,
    timer: Timer | None = None,
) -> Race:
    """Measure two calls in turn until it is decided which one to take.

    Args:
        pairs: the two calls on each of several problems, which take turns.
        decided: called after the least number of pairs, and after each further one.
        clock, timer: as in `race`.
    """
    start, timed = clock(), timer or by_clock(clock)
    runs = [[_runs(timed(call, 1), effort) for call in calls] for calls in pairs]
    seconds: tuple[list[float], list[float]] = ([], [])
    least, most = effort.pairs
    for pair in range(most):
        problem = pair % len(pairs)
        for index in (0, 1) if pair % 2 else (1, 0):
            seconds[index].append(timed(pairs[problem][index], runs[problem][index]))
        taken = Race(tuple(map(tuple, seconds)), 2 * (pair + 1 + len(pairs)))
        if clock() - start > effort.seconds or taken.executions + 2 > effort.executions or (
                pair + 1 >= least and decided(taken)):
            break
    return taken


def challenge(
    names: Sequence[str], run: Race, indices: tuple[int, int], pairs: Sequence[tuple[Call, Call]], *,
    guardrail: Guardrail, effort: MeasurementBudget, clock: Clock, timer: Timer | None = None,
) -> Outcome:
    """Let the winner of a race take the place of the baseline if the guardrail accepts it.

    Args:
        names: of all candidates and baselines.
        run: the race, of the first of them or of all.
        indices: of the winner and of the baseline.
        pairs, clock, timer: as in `duel`.
    """
    taken = duel(pairs, decided=lambda so_far: guardrail.judge(*so_far.seconds).sure, effort=effort, clock=clock,
                 timer=timer)
    verdict = guardrail.judge(*taken.seconds)
    trials = trials_of(names, run.seconds) + trials_of([names[index] for index in indices], taken.seconds)
    return Outcome(indices[0] if verdict.accepted else indices[1], taken, verdict, trials)


def trials_of(names: Sequence[str], seconds: Sequence[Sequence[float]]) -> tuple[Trial, ...]:
    """Pair names with seconds, as far as there are any."""
    return tuple(Trial(name, tuple(taken)) for name, taken in zip(names, seconds, strict=False))


def _runs(seconds: float, effort: MeasurementBudget) -> int:
    """Number of runs of so many seconds in one repetition."""
    return max(1, int(effort.short_seconds / max(seconds, 1e-9)))
