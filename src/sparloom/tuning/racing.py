"""Why a choice was made: what was measured for it, and what that took.

Whether something new may take the place of what is known to be good.

A short measurement: of many candidates, where those that fall behind drop out; of two, in turn.

A race that takes no runs of its own: each call of a program is computed by the candidate whose turn it is.

    all candidates, the most promising ones first -> rounds of those that are near the fastest, in turn ->
    the fastest and the best baseline in turn -> the fastest, if it passes the guardrail

What is measured is what runs: all rows, the operands of the program, the state in which it leaves the caches. So a
call counts in the comparison of the last two that follows one of the same candidate, as others meet what another one
has left in the caches: a turn has two calls, or one after a turn of the same. Who stays until then is told by the
fastest of all calls of each, as a call may be interrupted whoever computes it, and so is what candidates cost: how much
longer they take than the baseline. That has a limit, in runs and in seconds, until two are left; as the second one was
not slower then, their calls have one in number only.
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

__all__ = [
    "Call", "Clock", "Decision", "Guardrail", "MeasurementBudget", "OnlineRace", "Origin", "Race", "Timer", "Trial",
    "Verdict", "by_clock", "duel", "race",
]

Origin = Literal["rule", "measured"]


@dataclass(frozen=True)
class Trial:
    """One candidate of a measurement.

    Args:
        candidate: key of its configuration, or name of a library.
        seconds: one per repetition; none where time did not suffice to begin with it.
    """

    candidate: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Decision:
    """The evidence for a choice.

    Args:
        origin: "rule" where no candidate was measured beside what runs in any case (loops that are not fused, or a safe
            kernel), else "measured".
        reason: in words.
        trials: a race of candidates, whether or not time sufficed to begin with each, then the duel of its winner with
            the best baseline.
        executions: runs, on a sample where there is one, that the decision took, those of baselines included; calls of
            the program where these were the race.
        seconds: from beginning to end, with orders, schedules and estimates; where calls were the race, what they took
            beyond as many of what was chosen.
        from_cache: it was made before, by this or another process.
    """

    origin: Origin
    reason: str
    trials: tuple[Trial, ...] = ()
    executions: int = 0
    seconds: float = 0.0
    from_cache: bool = False

    def speedup(self, chosen: str) -> float | None:
        """Seconds of the baseline over those of what was chosen, in the final duel; None if there was none.

        Args:
            chosen: as among the trials.
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
        """Write as JSON values, all but `from_cache`."""
        return {name: value for name, value in asdict(self).items() if name != "from_cache"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Decision:
        """Read what `to_json` wrote.

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


NORMAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers
MEDIAN_ERROR = 1.2533  # standard errors of the median in one of the mean, likewise
TICK = 1e-9  # seconds; a clock that does not tell so little apart says 0


@dataclass(frozen=True)
class Verdict:
    """Seconds of the challenger over those of the reference.

    Args:
        ratio: the larger of two: median over pairs, and least over least.
        noise: standard error of the median.
        sure: whether more pairs would hardly change it.
    """

    accepted: bool
    ratio: float
    noise: float
    sure: bool

    @property
    def text(self) -> str:
        """The verdict in words."""
        result = "accepted" if self.accepted else "refused"
        return f"{result}: {self.ratio:.3f} of the seconds of the baseline, standard error {self.noise:.3f}"


@dataclass(frozen=True)
class Guardrail:
    """Accept a challenger only if it is faster than the reference beyond doubt.

    Args:
        alpha: its seconds may be at most this share of the reference's, ...
        errors: ... and less by so many standard errors.
    """

    alpha: float = 0.97
    errors: float = 1.0

    def judge(self, challenger: Sequence[float], reference: Sequence[float]) -> Verdict:
        """Compare repetitions that were taken in turn.

        Args:
            challenger, reference: seconds, as many of each.
        """
        ratios = [one / max(other, TICK) for one, other in zip(challenger, reference, strict=True)]
        middle = median(ratios)
        spread = NORMAL * median(abs(ratio - middle) for ratio in ratios)
        noise = MEDIAN_ERROR * spread / math.sqrt(len(ratios))
        ratio = max(middle, min(challenger) / max(min(reference), TICK))
        accepted = ratio + self.errors * noise <= self.alpha
        return Verdict(accepted, ratio, noise, sure=abs(ratio - self.alpha) > 2 * noise)


HOPELESS = 5  # times as slow as the best in the first run: not run again; who is first of all bears what all need

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Wall seconds."""

Call = Callable[[], None]
"""Runs a product once."""

Timer = Callable[[Call, int], float]
"""Runs a call so many times: mean seconds of a run, by whatever clock."""


@dataclass(frozen=True)
class MeasurementBudget:
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


def race(calls: Sequence[Call], *, effort: MeasurementBudget, clock: Clock, timer: Timer | None = None) -> Race:
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
    rivals: Sequence[tuple[Call, Call]], *, decided: Callable[[Race], bool], effort: MeasurementBudget, clock: Clock,
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


def _runs(seconds: float, effort: MeasurementBudget) -> int:
    """How many runs of so many seconds make a repetition."""
    return max(1, int(effort.short_seconds / max(seconds, 1e-9)))


FIRST = 0.5  # who is so much slower than the fastest in its very first call, ...
COLD = 0.3e-3  # ... and by so many seconds more, as that meets cold caches or is interrupted, has no other call
LEAST = 0.5e-3  # seconds that candidates may take longer in any case
ROUNDS = 0.6  # share of all calls that the rounds may take; those of the last two have the rest


class OnlineRace:
    """Says whose turn it is, and who wins.

    `winner` and `reason` say who was chosen and why, `rival` who the best baseline was; `seconds` those of all calls.

    Args:
        arms: candidates, by number: a baseline, which computed the call before the race, then the more promising ones
            first.
        baselines: which of them are baselines.
        effort: `repetitions` and `tolerance` of the rounds, `pairs` of the last two; twice `seconds` is a limit of what
            others may take longer than the first baseline, `executions` that of all calls.
        guardrail: what the fastest one must pass, against the best baseline.
        runs: of the first baseline, another limit of what others may take longer, or LEAST where that is more.
    """

    def __init__(
        self, arms: int, *, baselines: Sequence[int] = (0,), effort: MeasurementBudget, guardrail: Guardrail,
        runs: float,
    ) -> None:
        self.seconds: list[list[float]] = [[] for _ in range(arms)]
        self.winner, self.rival, self.reason = 0, 0, ""
        self._counted: list[list[float]] = [[] for _ in range(arms)]  # seconds of calls that follow one of the same arm
        self._last = 0  # who computed the call before
        self._baselines, self._effort, self._guardrail, self._runs = tuple(baselines), effort, guardrail, runs
        self._round, self._alive, self._duel = 0, list(range(arms)), False
        self._order = list(self._alive)
        self._executions = 0
        self._since: dict[int, int] = {}  # the last two -> where those runs begin that both took in the same rounds

    @property
    def settled(self) -> bool:
        """Whether it is known who wins, and why."""
        return bool(self.reason)

    @property
    def turn(self) -> int:
        """Whose it is; the winner's from the end on."""
        return self.winner if self.settled else self._order[0]

    def record(self, seconds: float) -> None:
        """Take the seconds of a call by the arm whose turn it is."""
        turn = self.turn
        self.seconds[turn].append(seconds)
        if self.settled:
            return
        follows, self._last = turn == self._last, turn
        if follows:
            self._counted[turn].append(seconds)
            self._order.pop(0)
        elif self._hopeless(turn, seconds):
            self._order.pop(0)
            self._alive.remove(turn)
        self._executions += 1
        if self._at_limit():
            self._limited()
        elif not self._order:
            self._next_round()

    def fail(self) -> None:
        """Put the arm out whose turn it was: it cannot compute, and the first baseline does so in its place."""
        arm = self._order.pop(0)
        self._alive.remove(arm)
        self._baselines = tuple(each for each in self._baselines if each != arm)
        self.seconds[arm], self._counted[arm], self._last = [], [], 0
        if self._duel:
            self.winner = self.rival = 0 if arm == self.rival else self.rival
            self.reason = "refused: it failed"
        elif not self._order:
            self._next_round()

    def paired(self, arm: int) -> list[float]:
        """Give the seconds of one of the last two that are compared."""
        begin = self._since[arm]
        return self._counted[arm][begin : begin + self._pairs]

    def _hopeless(self, arm: int, seconds: float) -> bool:
        return not self._counted[arm] and seconds > (1 + FIRST) * min(map(min, filter(None, self._counted))) + COLD

    def _at_limit(self) -> bool:
        if self._duel:
            return self._executions >= self._effort.executions
        usual = median(self._counted[0])
        longer = sum(len(taken) * max(0.0, self._least(arm) - usual) for arm, taken in enumerate(self.seconds) if taken)
        limit = min(max(self._runs * usual, LEAST), 2 * self._effort.seconds)
        return longer > limit or self._executions >= ROUNDS * self._effort.executions

    def _limited(self) -> None:
        if self._duel:
            self._settle()
        else:
            self._alive = [arm for arm in self._alive if self._counted[arm]]
            self._begin_duel()

    def _next_round(self) -> None:
        self._round += 1
        if self._duel:
            self._judge()
            return
        limit = (1 + self._effort.tolerance / self._round) * min(map(self._least, self._alive))
        self._alive = [arm for arm in self._alive if not arm or self._least(arm) <= limit]
        if self._round >= self._effort.repetitions or len(self._alive) <= 2:
            self._begin_duel()
        else:
            self._turns()

    def _begin_duel(self) -> None:
        """Let the fastest meet the best baseline; where they are the same there is nothing to win."""
        self._duel = True
        self.winner = min(self._alive, key=self._least)
        self.rival = min((arm for arm in self._baselines if self._counted[arm]), key=self._least)
        self._alive = [self.rival, self.winner]
        together = len(self._counted[self.rival]) == len(self._counted[self.winner])  # in every round so far
        self._since = {arm: 0 if together else len(self._counted[arm]) for arm in self._alive}
        if self.winner == self.rival:
            self.reason = "no candidate was faster than the best baseline"
        else:
            self._judge()

    def _judge(self) -> None:
        least, most = self._effort.pairs
        if self._pairs < most and (self._pairs < least or not self._verdict.sure):
            self._turns()
        else:
            self._settle()

    def _settle(self) -> None:
        if self._pairs < self._effort.pairs[0]:
            self.reason = f"refused: the limit left room for {self._pairs} pairs only"
        else:
            self.reason = self._verdict.text
        if self._pairs < self._effort.pairs[0] or not self._verdict.accepted:
            self.winner = self.rival

    @property
    def _pairs(self) -> int:
        """How often the last two had their turns in the same round."""
        return min(len(self._counted[arm]) - begin for arm, begin in self._since.items())

    @property
    def _verdict(self) -> Verdict:
        return self._guardrail.judge(self.paired(self.winner), self.paired(self.rival))

    def _least(self, arm: int) -> float:
        """Of all its calls: so few count that one which is interrupted would put it out."""
        return min(self.seconds[arm])

    def _turns(self) -> None:
        shift = self._round % len(self._alive)
        self._order = self._alive[shift:] + self._alive[:shift]
