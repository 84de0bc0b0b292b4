"""Decide how one sparse operation runs: a shortlist by a cost model, a race, a guardrail.

On sampled rows:

    default configuration -> shortlist -> race -> duel of the winner with the best baseline, on parts of the sample in
    turn -> the winner, if it passes the guardrail

Baselines are the default configuration of our space and other libraries; the best of them runs if nothing passes. If
the time is too short to measure anything, the default configuration is taken.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from sparloom.ops import Op, Operands
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import (
    Clock,
    Decision,
    MeasurementBudget,
    Outcome,
    Timer,
    Trial,
    challenge,
    race,
    trials_of,
)
from sparloom.tuning.search import sample_rows, shortlist
from sparloom.tuning.sparse.backend import Backend, CandidateSet, CsrChoice, Library
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = ["CsrDecider"]

log = logging.getLogger(__name__)

SAMPLE_RUNS = 3  # of the default configuration on the sample
MIN_RUNS = 10  # on the sample, below which nothing can be settled: two candidates twice, and the fewest pairs
RACE_SHARE = 0.6  # of the remaining time, for the race; the duel has the rest


@dataclass(frozen=True)
class CsrDecider:
    """Decides for one operation.

    Args:
        libraries: baselines besides the default configuration.
        cache: where the cost model of the shortlist finds rates of the machine; measuring them never counts as time of
            the measurements.
        clock: wall seconds; runs are timed by the backend's timer.
    """

    op: Op
    backend: Backend
    libraries: Mapping[str, Library]
    policy: CsrPolicy
    cache: PlanCache
    clock: Clock = time.perf_counter

    def decide(self, operands: Operands) -> tuple[CsrChoice, Decision]:
        """Measure a few kernels on a sample; refuse one whose result differs from that of the best baseline."""
        watch, pattern = _Stopwatch(self.clock), operands.matrix.pattern
        default = self.backend.default_config(self.op, operands)
        if not pattern.nnz:
            return CsrChoice(config=default.key), Decision("rule", "no nonzeros", (), 0, watch.seconds)
        parts = self._parts(operands)
        with watch.exclude_from_budget():
            launchable = self.backend.launchable(self.op, parts[0], [default])
            alone, timed = CandidateSet(self.op, self.backend, launchable, {}, parts).call(0), self._timer()
        sample_seconds = min(timed(alone, 1) for _ in range(SAMPLE_RUNS))
        allowed = 2 * self.policy.effort.seconds
        if not self._suffices(watch.until(allowed), MIN_RUNS, sample_seconds):
            reason = (f"{1e3 * allowed:.1f} ms are too short for {MIN_RUNS} runs of {1e3 * sample_seconds:.3f} ms on a "
                      "sample")
            return CsrChoice(config=default.key), Decision("rule", reason, (), SAMPLE_RUNS, watch.seconds)
        with watch.exclude_from_budget():
            model = self.backend.model(self.cache)
        configs = self.backend.configs(self.op, operands, sampled=parts[0] is not operands)
        listed = shortlist(model, self.op.name, operands, configs, count=self.policy.effort.candidates,
                           kind=self.backend.kind)
        shortlisted = [default, *(config for config in listed if config != default)]
        with watch.exclude_from_budget():
            launchable = self.backend.launchable(self.op, parts[0], shortlisted)
        candidates = CandidateSet(self.op, self.backend, launchable, self.libraries, parts)
        chosen, reason, trials, executions = self._settled(candidates, watch.until(allowed), sample_seconds)
        rows = sum(part.matrix.pattern.rows for part in parts)
        return candidates.choice(chosen), Decision("measured", f"{reason}; {rows} of {pattern.rows} rows", trials,
                                                   SAMPLE_RUNS + executions, watch.seconds)

    def _settled(
        self, candidates: CandidateSet, end: float, sample_seconds: float,
    ) -> tuple[int, str, tuple[Trial, ...], int]:
        """Measure candidates and baselines; return the index of the choice, the reason, all trials, and runs.

        Args:
            end: time at which measurements must end.
            sample_seconds: of the default on the sample, as far as known; the race measures it better.
        """
        names, own, begin = candidates.names, len(candidates.own), self.clock()
        timer = self._timer()
        run = race([candidates.call_or_failure(index) for index in range(len(names))], clock=self.clock, timer=timer,
                   effort=self._until(begin + RACE_SHARE * (end - begin)))
        least = [min(seconds, default=math.inf) for seconds in run.seconds]
        winner = min(range(own), key=least.__getitem__)
        baseline = min((0, *range(own, len(names))), key=least.__getitem__)
        trials = trials_of(names, run.seconds)
        if least[winner] >= least[baseline]:
            return baseline, "no candidate was faster than the best baseline", trials, run.executions
        pairs = self.policy.effort.pairs[0]
        if not self._suffices(end, 2 * (1 + pairs / len(candidates.parts)), min(sample_seconds, least[0])):
            return baseline, f"refused: no time for {pairs} pairs", trials, run.executions
        outcome = challenge(
            names, run, (winner, baseline), candidates.pairs(winner, baseline), guardrail=self.policy.guardrail,
            effort=self._until(end), clock=self.clock, timer=timer)
        accepted, reason = self._judged(outcome, len(candidates.parts))
        difference = candidates.difference(winner, baseline) if accepted else ""
        if difference:
            log.error("%s by %s is refused: %s", self.op.name, names[winner], difference)
            accepted, reason = False, f"refused: {difference}"
        return (winner if accepted else baseline, reason, outcome.trials,
                run.executions + outcome.duel.executions)

    def _timer(self) -> Timer:
        return self.backend.timer(self.clock)

    def _suffices(self, end: float, runs: float, sample_seconds: float) -> bool:
        """Tell whether the time that is left suffices for some runs on the sample of `sample_seconds` each."""
        return end - self.clock() >= runs * max(sample_seconds, self.policy.effort.short_seconds)

    def _parts(self, operands: Operands) -> list[Operands]:
        """Take the sample; the operands themselves if it is all rows."""
        pattern = operands.matrix.pattern
        sample = sample_rows(pattern, nonzeros=max(self.policy.least_nonzeros, int(self.policy.share * pattern.nnz)),
                             parts=self.policy.parts, seed=0)
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
