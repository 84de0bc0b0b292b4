"""How one sparse operation is decided: a shortlist by an estimate, a race on sampled rows, a guardrail.

    shortlist -> race of these, on the sample -> duel of the winner with the best baseline -> the winner, if it passes

Baselines are the default of our own space and other libraries; the best of them is what runs if nothing passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparloom.dispatch.csr.sample import sample_rows
from sparloom.dispatch.csr.shortlist import CsrCostModel, shortlist
from sparloom.dispatch.decision import Decision, Trial
from sparloom.dispatch.guardrail import Guardrail
from sparloom.dispatch.racing import Call, Clock, Effort, duel, race
from sparloom.ops import Op, Operands, assert_close
from sparloom.platforms import CpuKernels, Rival
from sparloom.space import Config

__all__ = ["CsrChoice", "CsrDecider", "CsrPolicy"]


@dataclass(frozen=True)
class CsrPolicy:
    """How decisions are made.

    Args:
        share: of the nonzeros in the sample; ...
        least_nonzeros: ... at least so many.
        calibrate: "sample", or "full": measure on all rows.
        effort: of the race and the duel together, counted in runs on the sample.
        guardrail: what our kernels must pass.
        seed: of the sample.
    """

    share: float = 0.05
    least_nonzeros: int = 20_000
    calibrate: str = "sample"
    effort: Effort = field(default_factory=lambda: Effort(
        candidates=6, repetitions=3, pairs=(5, 12), executions=40, seconds=0.2, short_seconds=0.1e-3))
    guardrail: Guardrail = field(default_factory=lambda: Guardrail(alpha=0.95))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.calibrate not in ("sample", "full"):
            raise ValueError(f"calibrate={self.calibrate!r}: give \"sample\" or \"full\"")
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} of the nonzeros: give a number above 0, at most 1")


@dataclass(frozen=True)
class CsrChoice:
    """What runs: a library, or a configuration of our kernels.

    Args:
        library: its name, "" for our own kernels.
        config: key of a point of the space, "" for a library.
    """

    library: str = ""
    config: str = ""


@dataclass(frozen=True)
class CsrDecider:
    """Decides for one operation.

    Args:
        libraries: baselines beside the default of our kernels.
        model: what the shortlist is made by.
        clock: wall seconds.
    """

    op: Op
    kernels: CpuKernels
    libraries: Mapping[str, Rival]
    policy: CsrPolicy
    model: Callable[[], CsrCostModel]
    clock: Clock = time.perf_counter

    def decide(self, operands: Operands) -> tuple[CsrChoice, Decision]:
        """Measure a few kernels on a sample.

        Raises:
            AssertionError: the winner computes something else than the best baseline.
        """
        start, pattern = self.clock(), operands.matrix.pattern
        if not pattern.nnz:
            return CsrChoice(config=self._default.key), Decision("rule", "no nonzeros")
        share = 1.0 if self.policy.calibrate == "full" else self.policy.share
        rows = sample_rows(pattern, nonzeros=max(self.policy.least_nonzeros, int(share * pattern.nnz)),
                           seed=self.policy.seed)
        sample = operands if rows.size == pattern.rows else operands.take_rows(rows, self.op.name)
        own = [self._default, *(config for config in shortlist(
            self.model(), self.op.name, sample, list(self.kernels.space(self.op)),
            count=self.policy.effort.candidates) if config != self._default)]
        names = [*(config.key for config in own), *self.libraries]
        result = self.kernels.family(self.op).result(sample)
        calls = self._bound(sample, own, result)
        run = race(calls, effort=self.policy.effort, clock=self.clock)
        least = [min(seconds, default=float("inf")) for seconds in run.seconds]
        winner = min(range(len(own)), key=least.__getitem__)
        baseline = min((0, *range(len(own), len(calls))), key=least.__getitem__)
        trials = [Trial(name, taken) for name, taken in zip(names, run.seconds, strict=True)]
        executions, chosen, reason = run.executions, baseline, "no candidate was faster than the best baseline"
        if least[winner] < least[baseline]:
            last = duel(calls[winner], calls[baseline], effort=self.policy.effort, clock=self.clock,
                        decided=lambda taken: self.policy.guardrail.judge(*taken.seconds).sure)
            verdict = self.policy.guardrail.judge(*last.seconds)
            self._compare(sample, result, calls[winner], calls[baseline])
            trials += [Trial(names[place], taken)
                       for place, taken in zip((winner, baseline), last.seconds, strict=True)]
            executions += last.executions
            chosen, reason = winner if verdict.accepted else baseline, verdict.text
        choice = CsrChoice(config=names[chosen]) if chosen < len(own) else CsrChoice(library=names[chosen])
        return choice, Decision("measured", f"{reason}; {rows.size} of {pattern.rows} rows", tuple(trials), executions,
                                self.clock() - start)

    @property
    def _default(self) -> Config:
        return self.kernels.baseline(self.op, None)

    def _bound(self, operands: Operands, configs: Sequence[Config], result: np.ndarray) -> list[Call]:
        family = self.kernels.family(self.op)
        return [*(family.bind(operands, config, result) for config in configs),
                *(bind(operands, result) for bind in self.libraries.values())]

    def _compare(self, operands: Operands, result: np.ndarray, winner: Call, baseline: Call) -> None:
        """Check that the winner computes what the baseline does."""
        baseline()
        expected = result.astype(np.float64)
        winner()
        assert_close(result, expected, terms=2 * self.op.terms(operands.matrix.pattern, operands.width),
                     scale=self.op.scale(operands))
