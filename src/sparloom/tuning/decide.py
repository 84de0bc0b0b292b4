"""How a product of three matrices is decided: a rule, a shortlist by a cost model, a race, a guardrail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparloom.space import TileFusionSpace
from sparloom.tuning.choice import PairChoice
from sparloom.tuning.cost_model import PairCostModel
from sparloom.tuning.decision import Decision, Trial
from sparloom.tuning.guardrail import Verdict
from sparloom.tuning.policy import Policy
from sparloom.tuning.problem import Problem
from sparloom.tuning.racing import Call, Clock, Race, duel, race
from sparloom.tuning.shortlist import shortlist, unfused_configs

__all__ = ["Decided", "Decider"]

Decided = tuple[PairChoice, Decision]


@dataclass(frozen=True)
class Decider:
    """Decides for one problem.

    Args:
        bind: choices -> a call for each, which runs the product once.
        model: what the shortlist is made by; asked only where there is one.
        cache_bytes: of the caches that threads do not share, all together.
        clock: wall seconds.
    """

    problem: Problem
    bind: Callable[[Sequence[PairChoice]], Sequence[Call]]
    threads: int
    policy: Policy
    model: Callable[[], PairCostModel]
    cache_bytes: float
    clock: Clock

    def never(self) -> Decided:
        """Take the fastest variant of unfused loops."""
        space = TileFusionSpace(self.problem.op.name, ("natural",))
        return self._fastest([PairChoice.of(config, threads=self.threads) for config in unfused_configs(space)])

    def always(self) -> Decided:
        """Take the fastest of the fused candidates."""
        return self._fastest(self._shortlist(self.policy.orders(self.problem, threads=self.threads)))

    def auto(self, unfused: Decided) -> Decided:
        """Take the fastest of the fused candidates if it passes the guardrail beside the unfused loops."""
        start, (reference, before) = self.clock(), unfused
        orders, objection = self.policy.try_fusion(self.problem, threads=self.threads, cache_bytes=self.cache_bytes)
        if objection:
            return reference, Decision("rule", objection, (), before.executions,
                                       before.seconds + self.clock() - start)
        choices = self._shortlist(orders)
        calls = self.bind([*choices, reference])
        fused = race(calls[:-1], effort=self.policy.effort, clock=self.clock)
        last = duel([(calls[fused.winner], calls[-1])], decided=lambda taken: self._judge(taken).sure,
                    effort=self.policy.effort, clock=self.clock)
        verdict = self._judge(last)
        trials = _trials([*choices, choices[fused.winner], reference], (*fused.seconds, *last.seconds))
        return choices[fused.winner] if verdict.accepted else reference, Decision(
            "measured", verdict.text, trials, before.executions + fused.executions + last.executions,
            before.seconds + self.clock() - start)

    def _fastest(self, choices: Sequence[PairChoice]) -> Decided:
        start = self.clock()
        run = race(self.bind(choices), effort=self.policy.effort, clock=self.clock)
        return choices[run.winner], Decision(
            "measured", f"fastest of {len(choices)}", _trials(choices, run.seconds), run.executions,
            self.clock() - start)

    def _judge(self, taken: Race) -> Verdict:
        return self.policy.guardrail.judge(*taken.seconds)

    def _shortlist(self, orders: Sequence[str]) -> list[PairChoice]:
        configs = shortlist(self.model(), self.problem, TileFusionSpace(self.problem.op.name, orders),
                            threads=self.threads, count=self.policy.effort.candidates)
        return [PairChoice.of(config, threads=self.threads) for config in configs]


def _trials(choices: Sequence[PairChoice], seconds: Sequence[tuple[float, ...]]) -> tuple[Trial, ...]:
    return tuple(Trial(choice.key, taken) for choice, taken in zip(choices, seconds, strict=True))
