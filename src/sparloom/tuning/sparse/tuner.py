"""Decide how one sparse operation runs: a shortlist by a cost model, a race, a guardrail.

On sampled rows, or with calibrate="full" on all:

    default configuration -> shortlist -> race -> duel of the winner with the best baseline, on parts of the sample in
    turn -> the winner, if it passes the guardrail

Baselines are the default configuration of our space and other libraries; the best of them runs if nothing passes. The
measurements take no longer than some runs of the default configuration on all rows; if that is too short to measure
anything, the default configuration is taken.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from sparloom.ops import Op, Operands
from sparloom.space import Config
from sparloom.tuning.racing import (
    Call,
    Clock,
    Decision,
    MeasurementBudget,
    Outcome,
    Trial,
    challenge,
    race,
    trials_of,
)
from sparloom.tuning.search import CsrCostModel, sample_rows, shortlist
from sparloom.tuning.sparse.backend import Backend, CandidateSet, CsrChoice, Library
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = ["CsrDecider"]

log = logging.getLogger(__name__)

SLOW_FLOPS, SLOW_BYTES = 1e9, 4e9  # per second, of a thread and of the memory; hardly any kernel here is slower
SAMPLE_RUNS = 3  # of the default configuration on the sample, unless one shows that there is no time for more
MIN_RUNS = 10  # on the sample, below which nothing can be settled: two candidates twice, and the fewest pairs
RACE_SHARE = 0.6  # of the remaining time, for the race; the duel has the rest


@dataclass(frozen=True)
class CsrDecider:
    """Decides for one operation.

    Args:
        libraries: baselines besides the default configuration.
        model: makes the cost model of the shortlist; called when something is measured, as it may measure rates of
            the machine or read files, which never counts as time of the measurements.
        clock: wall seconds; runs are timed by the backend's timer.
        allows: whether a configuration may be measured; the default always is.
        slow_model: asking the model may take longer than a race: it is excluded from the budget, as compilation is, but
            part of the seconds of the decision.
    """

    op: Op
    backend: Backend
    libraries: Mapping[str, Library]
    policy: CsrPolicy
    model: Callable[[], CsrCostModel]
    clock: Clock = time.perf_counter
    allows: Callable[[Config], bool] = lambda config: True
    slow_model: bool = False

    def decide(self, operands: Operands) -> tuple[CsrChoice, Decision]:
        """Measure a few kernels on a sample; refuse one whose result differs from that of the best baseline."""
        watch, pattern = _Stopwatch(self.clock), operands.matrix.pattern
        default = self.backend.default_config(self.op, operands)

        def unmeasured(reason: str, executions: int = 0) -> tuple[CsrChoice, Decision]:
            return CsrChoice(config=default.key), Decision("rule", reason, (), executions, watch.seconds)

        if not pattern.nnz:
            return unmeasured("no nonzeros")
        slow = self._max_seconds(operands)
        if not self.policy.seconds(slow):
            return unmeasured(self._too_short(slow))
        parts = self._parts(operands)
        with watch.exclude_from_budget():
            launchable = self.backend.launchable(self.op, parts[0], [default])
            alone = CandidateSet(self.op, self.backend, launchable, {}, parts).call(0)
        share = sum(part.matrix.pattern.nnz for part in parts) / pattern.nnz
        sample_seconds, before = self._seconds(alone, share)
        allowed = self.policy.seconds(sample_seconds / share)
        if not allowed:
            return unmeasured(self._too_short(sample_seconds / share), before)
        if not self.policy.enough(watch.until(allowed) - self.clock(), MIN_RUNS, sample_seconds):
            return unmeasured(f"{1e3 * allowed:.1f} ms are too short for {MIN_RUNS} runs of {1e3 * sample_seconds:.3f} "
                              "ms on a sample", before)
        with watch.exclude_from_budget():
            model = self.model()
        with watch.exclude_from_budget() if self.slow_model else nullcontext():
            configs = self.backend.configs(self.op, operands, sampled=parts[0] is not operands)
            shortlisted = self._shortlist(model, default, operands, configs, self.policy.effort.candidates)
        with watch.exclude_from_budget():
            launchable = self.backend.launchable(self.op, parts[0], shortlisted)
        candidates = CandidateSet(self.op, self.backend, launchable, self.libraries, parts)
        chosen, reason, trials, executions = self._settled(
            candidates, lambda seconds: watch.until(self.policy.seconds(seconds / share)), sample_seconds)
        rows = sum(part.matrix.pattern.rows for part in parts)
        return candidates.choice(chosen), Decision("measured", f"{reason}; {rows} of {pattern.rows} rows", trials,
                                                   before + executions, watch.seconds)

    def _settled(
        self, candidates: CandidateSet, end: Callable[[float], float], sample_seconds: float,
    ) -> tuple[int, str, tuple[Trial, ...], int]:
        """Measure candidates and baselines; return the index of the choice, the reason, all trials, and runs.

        Args:
            end: time at which measurements must end if the default takes so many seconds on the sample.
            sample_seconds: what it takes, as far as known; the race measures it better.
        """
        names, own, begin = candidates.names, len(candidates.own), self.clock()
        timer = self.backend.timer(self.clock)
        run = race([candidates.call_or_failure(index) for index in range(len(names))], clock=self.clock, timer=timer,
                   effort=self._until(begin + RACE_SHARE * (end(sample_seconds) - begin)))
        least = [min(seconds, default=math.inf) for seconds in run.seconds]
        winner = min(range(own), key=least.__getitem__)
        baseline = min((0, *range(own, len(names))), key=least.__getitem__)
        trials = trials_of(names, run.seconds)
        if least[winner] >= least[baseline]:
            return baseline, "no candidate was faster than the best baseline", trials, run.executions
        sample_seconds, pairs = min(sample_seconds, least[0]), self.policy.effort.pairs[0]
        runs = 2 * (1 + pairs / len(candidates.parts))
        if not self.policy.enough(end(sample_seconds) - self.clock(), runs, sample_seconds):
            return baseline, f"refused: no time for {pairs} pairs", trials, run.executions
        outcome = challenge(
            names, run, (winner, baseline), candidates.pairs(winner, baseline), guardrail=self.policy.guardrail,
            effort=self._until(end(sample_seconds)), clock=self.clock, timer=timer)
        accepted, reason = self._judged(outcome, len(candidates.parts))
        difference = candidates.difference(winner, baseline) if accepted else ""
        if difference:
            log.error("%s by %s is refused: %s", self.op.name, names[winner], difference)
            accepted, reason = False, f"refused: {difference}"
        return (winner if accepted else baseline, reason, outcome.trials,
                run.executions + outcome.duel.executions)

    def _shortlist(
        self, model: CsrCostModel, default: Config, operands: Operands, configs: Sequence[Config], count: int,
    ) -> list[Config]:
        """Choose among configurations of our kernels, the default first."""
        allowed = [config for config in configs if self.allows(config)]
        listed = shortlist(model, self.op.name, operands, allowed, count=count, kind=self.backend.kind)
        return [default, *(config for config in listed if config != default)]

    def _too_short(self, run: float) -> str:
        return f"{self.policy.runs:g} runs of {1e3 * run:.3f} ms are too short to measure in"

    def _max_seconds(self, operands: Operands) -> float:
        """Estimate the seconds of a slow run: if that is too short, nothing has to be run."""
        work = self.op.work(operands.matrix.pattern, operands.width)
        return work.flops / (SLOW_FLOPS * max(1, self.backend.threads)) + work.bytes / SLOW_BYTES

    def _seconds(self, call: Call, share: float) -> tuple[float, int]:
        """Seconds of the fastest run on a sample with this share of the nonzeros, and the number of runs."""
        timed = self.backend.timer(self.clock)
        seconds = [timed(call, 1)]
        while len(seconds) < SAMPLE_RUNS and self.policy.seconds(min(seconds) / share):
            seconds.append(timed(call, 1))
        return min(seconds), len(seconds)

    def _parts(self, operands: Operands) -> list[Operands]:
        """Take the sample; the operands themselves if it is all rows."""
        pattern, share = operands.matrix.pattern, 1.0 if self.policy.calibrate == "full" else self.policy.share
        sample = sample_rows(pattern, nonzeros=max(self.policy.least_nonzeros, int(share * pattern.nnz)),
                             parts=self.policy.parts, seed=self.policy.seed)
        if sample.rows.size == pattern.rows:
            return [operands]
        return [self.backend.arrays.take_rows(operands, rows, self.op.name) for rows in sample.parts]

    def _until(self, end: float) -> MeasurementBudget:
        return replace(self.policy.effort, seconds=max(1e-9, end - self.clock()))

    def _judged(self, outcome: Outcome, parts: int) -> tuple[bool, str]:
        """Say whether the winner is accepted, and what it took in each part, as a share of the baseline's seconds."""
        count = len(outcome.duel.seconds[0])
        if count < self.policy.effort.pairs[0]:
            return False, f"refused: time for {count} pairs only"
        ratios = np.divide(*outcome.duel.seconds)
        by_part = ", ".join(f"{np.median(ratios[number::parts]):.3f}" for number in range(min(parts, ratios.size)))
        return outcome.verdict.accepted, f"{outcome.verdict.text}; by part {by_part}"


class _Stopwatch:
    """Measures a decision, and what of it is excluded from the budget of its measurements."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._start, self._excluded = clock, clock(), 0.0

    @property
    def seconds(self) -> float:
        """Total."""
        return self._clock() - self._start

    def until(self, allowed: float) -> float:
        """Time at which measurements that may take so long must end."""
        return self._start + self._excluded + allowed

    @contextmanager
    def exclude_from_budget(self) -> Iterator[None]:
        """Exclude what is done in the block."""
        begin = self._clock()
        yield
        self._excluded += self._clock() - begin
