"""How one sparse operation is decided: a shortlist by an estimate, a race on sampled rows, a guardrail.

    the safe one, on a sample -> shortlist -> race of these, on the sample -> duel of the winner with the best baseline,
    on parts of the sample in turn -> the winner, if it passes

or, with calibrate="online", where the calls of the program are the race (`OnlineReplay`):

    the safe one, as the first calls -> shortlist, with the libraries that are not far behind it on a sample

Baselines are a safe configuration of our own space and other libraries; the best of them is what runs if nothing
passes. All of it takes no longer than some runs of the safe one on all rows, as its runs on the sample tell; where that
is too short to measure anything, that is taken.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from sparloom.ops import Op, Operands
from sparloom.space import Config
from sparloom.tuning.decision import Decision, Trial
from sparloom.tuning.guardrail import Guardrail
from sparloom.tuning.racing import Call, Clock, Effort, Race, duel, race
from sparloom.tuning.sparse.contest import Contest, CsrChoice
from sparloom.tuning.sparse.place import Place
from sparloom.tuning.sparse.rivals import Library
from sparloom.tuning.sparse.sample import sample_rows
from sparloom.tuning.sparse.shortlist import CsrCostModel, shortlist

__all__ = ["CsrDecider", "CsrPolicy"]

log = logging.getLogger(__name__)

Calibration = Literal["sample", "full", "online"]
CALIBRATIONS = get_args(Calibration)

SLOW_FLOPS, SLOW_BYTES = 1e9, 4e9  # per second, of a thread and of the memory; hardly any kernel here is slower
RUNS = 3  # of the safe configuration on the sample before all, unless one shows that there is no time for more
ENOUGH = 10  # runs on the sample, with fewer left nothing is settled: two candidates twice, and the fewest pairs
RACE = 0.6  # share of the time that is left which the race may take; the duel has the rest
NEAR = 1.3  # times as long as the safe one on the sample, up to which a library computes calls of the program
LOOKS = 2  # runs of each on the sample for that
ONLINE = Effort(candidates=6, repetitions=2, pairs=(4, 16), executions=120, seconds=1.0, tolerance=0.2)
BINDING = 1.0  # runs that binding a candidate may take which computes calls of a program
STARTING = 0.5e-3  # seconds of all threads but one in a run, up to which starting them may take longer than they save
ASKING = 1e-3  # seconds of a run, from which on a model is asked, which takes about as long


@dataclass(frozen=True)
class CsrPolicy:
    """How decisions are made.

    Args:
        share: of the nonzeros in the sample; ...
        least_nonzeros: ... at least so many.
        parts: of the sample, on which the winner and the best baseline meet in turn: their spread is in the verdict.
        calibrate: "sample"; "full": measure on all rows, however long that takes; "online": let candidates compute the
            calls of the program in turn, until it is known which is the fastest.
        runs: of the safe configuration on all rows that all measurements may take, from beginning to end; online, that
            candidates may take longer than it; ...
        least_seconds: ... where that is less than this, or too few runs on the sample, nothing is measured on one.
        effort: counted in runs on the sample: `executions` of the race and of the duel, each; twice `seconds` of both
            together.
        guardrail: what our kernels must pass.
        seed: of the sample.
    """

    share: float = 0.05
    least_nonzeros: int = 20_000
    parts: int = 3
    calibrate: Calibration = "sample"
    runs: float = 7.0
    least_seconds: float = 20e-3
    effort: Effort = field(default_factory=lambda: Effort(
        candidates=6, repetitions=3, pairs=(5, 12), executions=40, seconds=0.2, short_seconds=0.1e-3))
    guardrail: Guardrail = field(default_factory=lambda: Guardrail(alpha=0.95))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.calibrate not in CALIBRATIONS:
            raise ValueError(f"calibrate={self.calibrate!r}: give one of {', '.join(CALIBRATIONS)}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} of the nonzeros: give a number above 0, at most 1")
        if self.parts < 1:
            raise ValueError(f"parts={self.parts} of the sample: give at least 1")

    @classmethod
    def online(cls, **changes: Any) -> CsrPolicy:
        """Let the calls of a program be the race.

        Args:
            changes: of these settings.
        """
        return cls(**{"calibrate": "online", "runs": 4.0, "effort": ONLINE, **changes})

    def seconds(self, run: float) -> float:
        """How long the measurements may take where a run takes so many seconds; 0: none are made."""
        if self.calibrate == "full":
            return 2 * self.effort.seconds
        allowed = min(self.runs * run, 2 * self.effort.seconds)
        return allowed if allowed >= self.least_seconds else 0.0

    def enough(self, seconds: float, runs: float, sample_seconds: float) -> bool:
        """Tell whether so many seconds are enough for some runs on the sample that take `sample_seconds` each."""
        return self.calibrate == "full" or seconds >= runs * max(sample_seconds, self.effort.short_seconds)


@dataclass(frozen=True)
class CsrDecider:
    """Decides for one operation.

    Args:
        where: the operands are, and what runs there.
        libraries: baselines beside the safe configuration.
        model: makes what the shortlist is made by; asked when something is measured, as this may measure rates of the
            machine or read files, which is never part of what the measurements may take.
        clock: wall seconds; what is measured is timed as `where` says.
        allows: tells of a configuration whether it may be measured; the safe one always is.
        apart: what the model takes is, like what compiles kernels, not part of what the measurements may take, as it
            may be longer than a race; it is part of the seconds of the decision.
    """

    op: Op
    where: Place
    libraries: Mapping[str, Library]
    policy: CsrPolicy
    model: Callable[[], CsrCostModel]
    clock: Clock = time.perf_counter
    allows: Callable[[Config], bool] = lambda config: True
    apart: bool = False

    def decide(self, operands: Operands) -> tuple[CsrChoice, Decision]:
        """Measure a few kernels on a sample; one that computes something else than the best baseline is refused."""
        watch, pattern, safe = _Watch(self.clock), operands.matrix.pattern, self.where.safe(self.op, operands)

        def unmeasured(reason: str, executions: int = 0) -> tuple[CsrChoice, Decision]:
            return CsrChoice(config=safe.key), Decision("rule", reason, (), executions, watch.seconds)

        if not pattern.nnz:
            return unmeasured("no nonzeros")
        slow = self._most_seconds(operands)
        if not self.policy.seconds(slow):
            return unmeasured(self._too_short(slow))
        parts = self._parts(operands)
        with watch.apart():
            alone = Contest(self.op, self.where, self.where.able(self.op, parts[0], [safe]), {}, parts).call(0)
        share = sum(part.matrix.pattern.nnz for part in parts) / pattern.nnz
        sample_seconds, before = self._seconds(alone, share)
        allowed = self.policy.seconds(sample_seconds / share)
        if not allowed:
            return unmeasured(self._too_short(sample_seconds / share), before)
        if not self.policy.enough(watch.until(allowed) - self.clock(), ENOUGH, sample_seconds):
            return unmeasured(f"{1e3 * allowed:.1f} ms are too short for {ENOUGH} runs of {1e3 * sample_seconds:.3f} "
                              "ms on a sample", before)
        with watch.apart():
            model = self.model()
        with watch.apart() if self.apart else nullcontext():
            configs = self.where.configs(self.op, operands, sampled=parts[0] is not operands)
            candidates = self._candidates(model, safe, operands, configs)
        with watch.apart():
            able = self.where.able(self.op, parts[0], candidates)
        contest = Contest(self.op, self.where, able, self.libraries, parts)
        chosen, reason, trials, executions = self._settled(
            contest, lambda seconds: watch.until(self.policy.seconds(seconds / share)), sample_seconds)
        rows = sum(part.matrix.pattern.rows for part in parts)
        return contest.choice(chosen), Decision("measured", f"{reason}; {rows} of {pattern.rows} rows", trials,
                                                before + executions, watch.seconds)

    def entrants(self, operands: Operands, run: float, busy: bool = False) -> tuple[list[CsrChoice], list[int]]:
        """Choose what is worth to compute a call of the program.

        Args:
            run: seconds of the safe one, as the program has called it.
            busy: the machine is, so that one thread may be faster than many.

        Returns:
            Choices, a baseline first and then the most promising ones; which of them are baselines.
        """
        safe = self.where.safe(self.op, operands)
        able = self.where.able(self.op, operands, self._few(operands, safe, run))
        own = [CsrChoice(config=config.key) for config in able]
        libraries = [CsrChoice(library=name) for name in self._near(operands, safe, run)]
        others = self.where.threads - 1
        alone = [replace(own[0], threads=1)] if others > 0 and (busy or others * run <= STARTING) else []
        rest = own[1:max(1, self.policy.effort.candidates - len(alone))]
        return [own[0], *libraries, *alone, *rest], list(range(1 + len(libraries)))

    def _few(self, operands: Operands, safe: Config, run: float) -> list[Config]:
        """Choose configurations of our kernels, the safe one first; of short runs, without asking a model."""
        where, pattern = self.where, operands.matrix.pattern

        def quick(configs: Sequence[Config]) -> list[Config]:
            return [config for config in configs
                    if self.allows(config) and where.binding_seconds(config, pattern) <= BINDING * run]

        portfolios, count = where.portfolios(self.op, operands), self.policy.effort.candidates
        if self.apart or run >= ASKING or max(map(len, portfolios), default=0) < count:
            configs = quick(where.configs(self.op, operands, sampled=False))
            return self._candidates(self.model(), safe, operands, configs)
        return [safe, *(config for config in max(map(quick, portfolios), key=len) if config != safe)][:count]

    def _near(self, operands: Operands, safe: Config, run: float) -> list[str]:
        """Name libraries that are not far behind the safe one on a sample, where there is time to ask."""
        if not self.libraries or self.policy.runs * run < self.policy.least_seconds:
            return []
        contest = Contest(self.op, self.where, [safe], self.libraries, self._parts(operands)[:1])
        timed = self.where.timer(self.clock)
        taken = {}
        for place, name in enumerate(contest.names):
            try:
                call = contest.call(place)
                taken[name] = min(timed(call, 1) for _ in range(LOOKS))
            except Exception as error:
                if not place:
                    raise
                log.warning("%s by %s fails: %r", self.op.name, name, error)
        return [name for name in self.libraries if taken.get(name, math.inf) <= NEAR * taken[safe.key]]

    def _settled(
        self, contest: Contest, end: Callable[[float], float], sample_seconds: float,
    ) -> tuple[int, str, tuple[Trial, ...], int]:
        """Measure candidates and baselines; say which to take and why, all trials, and runs on the sample.

        Args:
            end: of the measurements, where the safe one takes so many seconds on the sample; ...
            sample_seconds: ... these, as far as they are known; the race tells better.
        """
        names, own, begin = contest.names, len(contest.own), self.clock()
        run = race([_able(contest, place) for place in range(len(names))], clock=self.clock,
                   effort=self._until(begin + RACE * (end(sample_seconds) - begin)), timer=self.where.timer(self.clock))
        least = [min(seconds, default=math.inf) for seconds in run.seconds]
        winner = min(range(own), key=least.__getitem__)
        baseline = min((0, *range(own, len(names))), key=least.__getitem__)
        trials = tuple(Trial(name, taken) for name, taken in zip(names, run.seconds, strict=True))
        if least[winner] >= least[baseline]:
            return baseline, "no candidate was faster than the best baseline", trials, run.executions
        sample_seconds, pairs = min(sample_seconds, least[0]), self.policy.effort.pairs[0]
        runs = 2 * (1 + pairs / len(contest.parts))
        if not self.policy.enough(end(sample_seconds) - self.clock(), runs, sample_seconds):
            return baseline, f"refused: no time for {pairs} pairs", trials, run.executions
        last = duel(contest.rivals(winner, baseline), clock=self.clock, effort=self._until(end(sample_seconds)),
                    decided=lambda taken: self.policy.guardrail.judge(*taken.seconds).sure,
                    timer=self.where.timer(self.clock))
        accepted, reason = self._judged(last, len(contest.parts))
        difference = contest.difference(winner, baseline) if accepted else ""
        if difference:
            log.error("%s by %s is refused: %s", self.op.name, names[winner], difference)
            accepted, reason = False, f"refused: {difference}"
        trials += tuple(Trial(names[place], taken)
                        for place, taken in zip((winner, baseline), last.seconds, strict=True))
        return winner if accepted else baseline, reason, trials, run.executions + last.executions

    def _candidates(
        self, model: CsrCostModel, safe: Config, operands: Operands, configs: Sequence[Config],
    ) -> list[Config]:
        """Choose among configurations of our kernels, the safe one first."""
        allowed = [config for config in configs if self.allows(config)]
        listed = shortlist(model, self.op.name, operands, allowed, count=self.policy.effort.candidates,
                           kind=self.where.kind)
        return [safe, *(config for config in listed if config != safe)]

    def _too_short(self, run: float) -> str:
        return f"{self.policy.runs:g} runs of {1e3 * run:.3f} ms are too short to measure in"

    def _most_seconds(self, operands: Operands) -> float:
        """Guess the seconds of a slow run: what is short even so need not be run to be known."""
        work = self.op.work(operands.matrix.pattern, operands.width)
        return work.flops / (SLOW_FLOPS * max(1, self.where.threads)) + work.bytes / SLOW_BYTES

    def _seconds(self, call: Call, share: float) -> tuple[float, int]:
        """Seconds of the fastest run on the sample, with this share of the nonzeros; and how many it took to know."""
        timed = self.where.timer(self.clock)
        seconds = [timed(call, 1)]
        while len(seconds) < RUNS and self.policy.seconds(min(seconds) / share):
            seconds.append(timed(call, 1))
        return min(seconds), len(seconds)

    def _parts(self, operands: Operands) -> list[Operands]:
        """Take the sample; the operands as they are where it is all rows."""
        pattern, share = operands.matrix.pattern, 1.0 if self.policy.calibrate == "full" else self.policy.share
        sample = sample_rows(pattern, nonzeros=max(self.policy.least_nonzeros, int(share * pattern.nnz)),
                             parts=self.policy.parts, seed=self.policy.seed)
        if sample.rows.size == pattern.rows:
            return [operands]
        return [self.where.take_rows(operands, rows, self.op.name) for rows in sample.parts]

    def _until(self, end: float) -> Effort:
        return replace(self.policy.effort, seconds=max(1e-9, end - self.clock()))

    def _judged(self, last: Race, parts: int) -> tuple[bool, str]:
        """Judge the winner, and say what it took in each part of the sample, as a share of the baseline's seconds."""
        verdict = self.policy.guardrail.judge(*last.seconds)
        if len(last.seconds[0]) < self.policy.effort.pairs[0]:
            return False, f"refused: time for {len(last.seconds[0])} pairs only"
        ratios = np.divide(*last.seconds)
        by_part = ", ".join(f"{np.median(ratios[number::parts]):.3f}" for number in range(min(parts, ratios.size)))
        return verdict.accepted, f"{verdict.text}; by part {by_part}"


def _able(contest: Contest, place: int) -> Call:
    """Bind a candidate, or give what fails in its place: the race goes on without it."""
    try:
        return contest.call(place)
    except Exception as error:
        failure = error  # `error` is gone when the call runs

        def fail() -> None:
            raise failure

        return fail


class _Watch:
    """What a decision takes, and what of it is not part of what its measurements may take.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._start, self._apart = clock, clock(), 0.0

    @property
    def seconds(self) -> float:
        """All."""
        return self._clock() - self._start

    def until(self, allowed: float) -> float:
        """When measurements that may take so long must end."""
        return self._start + self._apart + allowed

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave out what is done meanwhile."""
        begin = self._clock()
        yield
        self._apart += self._clock() - begin
