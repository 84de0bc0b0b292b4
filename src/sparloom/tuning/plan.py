"""Plans: a choice, why it was made, and the executor of it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from sparloom.errors import NotDecided, Unsupported
from sparloom.fusion import Executor, Pair
from sparloom.measure import cache_levels, checked_threads
from sparloom.ops import Operands
from sparloom.tuning.choice import PairChoice
from sparloom.tuning.cost_model import PairCostModel
from sparloom.tuning.decide import Decided, Decider
from sparloom.tuning.decision import Decision
from sparloom.tuning.estimate import Estimate
from sparloom.tuning.load import watch_load
from sparloom.tuning.plan_cache import PlanCache
from sparloom.tuning.plan_key import PlanKey
from sparloom.tuning.policy import Policy
from sparloom.tuning.problem import Problem
from sparloom.tuning.workshop import Workshop

__all__ = ["Fuse", "PairPlan", "plan_pair"]

log = logging.getLogger(__name__)

Fuse = Literal["auto", "never", "always"]


@dataclass(frozen=True)
class PairPlan:
    """How a product of three matrices is computed from now on.

    Args:
        executor: for operands on the patterns that were planned for: `executor.bind(operands, result)` gives the call.
    """

    choice: PairChoice
    decision: Decision
    executor: Executor


def plan_pair(
    op: Pair, operands: Operands, *, fuse: Fuse = "auto", threads: int | None = None, cache: PlanCache | None = None,
    cost_model: PairCostModel | None = None, policy: Policy | None = None, replay_only: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> PairPlan:
    """Choose how to compute a product of three matrices, and prepare it.

    The first call for a pattern and a width measures a few candidates on the operands, within the bounds of the policy;
    later ones, in any process, find in the cache what was decided.

    Args:
        fuse: "auto": fused loops if they pass the guardrail, else unfused ones; "never" and "always": the fastest of
            one kind.
        threads: of every call; all processors that this process may use unless given.
        cache: where decisions are kept; the folder of this user unless given.
        cost_model: names the candidates that are measured; a formula over rates of this machine unless given.
        replay_only: measure nothing.
        clock: wall seconds.

    Raises:
        TypeError, ValueError: `fuse` is none of the three, or there are too many threads, or no number of them.
        Unsupported: fuse="always" for loops of different length.
        NotDecided: `replay_only`, and nothing is kept for these patterns, extents, threads and this machine.
    """
    if fuse not in get_args(Fuse):
        raise ValueError(f"fuse={fuse!r}: give \"auto\", \"never\" or \"always\"")
    threads = checked_threads(threads)
    cache = PlanCache.of_this_user() if cache is None else cache
    problem = Problem.of(op, operands)
    key = PlanKey.of(problem, threads=threads, fuse=fuse)
    known = _replayed(problem, key, cache)
    if known is not None:
        return known
    if replay_only:
        raise NotDecided(f"no plan for {op.name} with {problem.pattern}, width {problem.width}, {problem.dtype}, "
                         f"{threads} threads, fuse={fuse!r} in {cache.folder}: plan once without replay_only")
    policy = Policy() if policy is None else policy
    decider = Decider(
        problem, lambda choices: Workshop(problem).calls(operands, choices), threads, policy,
        lambda: cost_model or Estimate(cache.rates(threads), threads), threads * cache_levels().get(2, 0), clock)
    choice, decision = _decide(decider, key, cache)
    log.info("%s, %s, width %d: %s; %s; %d executions, %.2f s", op.name, problem.pattern, problem.width, choice.key,
             decision.reason, decision.executions, decision.seconds)
    return PairPlan(choice, decision, Workshop(problem).executor(choice))


def _replayed(problem: Problem, key: PlanKey, cache: PlanCache) -> PairPlan | None:
    """What was decided before, made ready; None if nothing was, or if it cannot be made here."""
    found = cache.find(key)
    if found is None:
        return None
    choice, decision = found
    order = cache.find_order(key.pattern, choice.order, problem.pattern.rows) if choice.order != "natural" else None
    if order is not None:
        problem.keep_order(choice.order, order)
    try:
        return PairPlan(choice, decision, Workshop(problem).executor(choice))
    except Unsupported as error:
        log.warning("%s was decided, but %s: it is decided anew", choice.key, error)
        return None


def _decide(decider: Decider, key: PlanKey, cache: PlanCache) -> Decided:
    """Decide, and keep it unless the machine was busy; "auto" rests on what "never" came to."""
    match key.fuse:
        case "always":
            decided, busy = _watched(decider.always, cache)
        case "never":
            decided, busy = _watched(decider.never, cache)
        case _:
            unfused = replace(key, fuse="never")
            before = cache.find(unfused) or _decide(decider, unfused, cache)
            decided, busy = _watched(lambda: decider.auto(before), cache)
    choice, decision = decided
    cache.keep(key, choice, decision, busy=busy)
    if choice.order != "natural":
        cache.keep_order(key.pattern, choice.order, decider.problem.order(choice.order))
    return decided


def _watched(decide: Callable[[], Decided], cache: PlanCache) -> tuple[Decided, str]:
    """Decide, and say why the machine was busy meanwhile; "" if it was not."""
    watch = watch_load(keep_busy=cache.keep_busy)
    with watch.over():
        decided = decide()
    return decided, watch.close()
