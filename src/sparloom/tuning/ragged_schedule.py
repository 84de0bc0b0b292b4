"""Schedules of ragged operators: searched by a cost model that has seen a few, checked by measurement, remembered.

    key in the cache?  ->  the schedule that is kept
    else  a sample of the space, measured in turn  ->  an additive cost model  ->  its best of the whole space, measured
          beside the best of the sample and the default  ->  the fastest, if it beats the default beyond doubt

Source: CoRa leaves schedules to hand and grid search (§6, §7.2 "manual scheduling and grid search").
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sparloom.errors import IllegalSchedule
from sparloom.measure import checked_threads
from sparloom.models import Static
from sparloom.ragged import Executable, Structure
from sparloom.space import Config
from sparloom.tuning import Evolution
from sparloom.tuning.guardrail import Guardrail
from sparloom.tuning.load import watch_load
from sparloom.tuning.plan_cache import PlanCache
from sparloom.tuning.plan_key import machine_digest, ragged_kernels_digest
from sparloom.tuning.racing import Effort, duel, race
from sparloom.tuning.ragged_operator import RaggedOperator
from sparloom.tuning.search import best

__all__ = ["RaggedChoice", "RaggedEffort", "choose_schedule"]

log = logging.getLogger(__name__)

Call = Callable[[], None]
EVOLUTION = Evolution(population=64, generations=8, patience=3, mutation=0.2, tournament=3, seed=0)


@dataclass(frozen=True)
class RaggedEffort:
    """How much a choice may measure.

    Args:
        sample: configurations from which the cost model learns, the default among them.
        proposed: by the cost model, that are measured besides.
        race: of both measurements.
        guardrail: what the winner must pass against the default.
        seed: of the sample and of the operands.
    """

    sample: int = 16
    proposed: int = 4
    race: Effort = field(default_factory=lambda: Effort(candidates=20, repetitions=3, executions=120, seconds=20.0))
    guardrail: Guardrail = field(default_factory=Guardrail)
    seed: int = 0


@dataclass(frozen=True)
class RaggedChoice:
    """A schedule, and why.

    Args:
        ratio: its seconds over those of the default; 1 for the default.
        measured: configurations.
        seconds: that the choice took.
        from_cache: it was made before.
    """

    config: Config
    ratio: float
    measured: int
    seconds: float
    from_cache: bool = False


def choose_schedule(
    operator: RaggedOperator, structure: Structure, *, threads: int, effort: RaggedEffort | None = None,
    plans: PlanCache | None = None, search: bool = True,
) -> RaggedChoice:
    """Choose a schedule for all batches that are like this one.

    Args:
        plans: where choices are kept; that of this user by default.
        search: measure where nothing is kept; else take the default.

    Raises:
        CompileError: no program compiles.
        TypeError, ValueError: there are too many threads, or no number of them.
    """
    plans = plans or PlanCache.of_this_user()
    threads = checked_threads(threads)
    key = _key(operator, structure, threads)
    kept = _kept(plans, key, operator)
    if kept is not None:
        return kept
    if not search:
        return RaggedChoice(operator.space.default(), 1.0, 0, 0.0)
    watch = watch_load(keep_busy=plans.keep_busy)
    with watch.over():
        choice = _searched(operator, operator.part(structure), threads, effort or RaggedEffort())
    plans.keep_schedule(key, {"config": choice.config.key, "ratio": choice.ratio, "measured": choice.measured,
                              "seconds": choice.seconds}, busy=watch.close(), seconds=choice.seconds)
    log.info("%s: %s, %.3f of the seconds of the default, chosen in %.1f s", operator.name, choice.config, choice.ratio,
             choice.seconds)
    return choice


def _kept(plans: PlanCache, key: Mapping[str, Any], operator: RaggedOperator) -> RaggedChoice | None:
    found = plans.find_schedule(key)
    if found is None:
        return None
    try:
        return RaggedChoice(operator.space.parse(found["config"]), float(found["ratio"]), int(found["measured"]),
                            float(found["seconds"]), from_cache=True)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, IllegalSchedule) as error:
        log.warning("what was chosen for %s: %s: it is decided anew", operator.name, error)
        return None


def _searched(operator: RaggedOperator, structure: Structure, threads: int, effort: RaggedEffort) -> RaggedChoice:
    start = time.perf_counter()
    space, default = operator.space, operator.space.default()
    drawn = space.sample(min(effort.sample, len(space)), np.random.default_rng(effort.seed))
    sample = [default, *(config for config in drawn if config != default)]
    calls = _Calls(operator, structure, threads, effort.seed)
    first = _measured(calls, sample, effort)
    labels = pd.DataFrame([{"matrix": "batch", "config": config.key, "seconds": seconds}
                           for config, seconds in first.items()])
    model = Static().fit(labels, space=space)
    ranked = best(model.rate, space, min(len(space), len(first) + effort.proposed), evolution=EVOLUTION)
    proposed = [each.config for each in ranked if each.config not in first][:effort.proposed]
    fastest = min(first, key=first.__getitem__)
    last = _measured(calls, list(dict.fromkeys([default, fastest, *proposed])), effort)
    winner = min(last, key=last.__getitem__)
    measured = len(first) + len(proposed)
    if winner == default:
        return RaggedChoice(default, 1.0, measured, time.perf_counter() - start)
    taken = duel([(calls.bound(winner), calls.bound(default))], effort=effort.race, clock=time.perf_counter,
                 decided=lambda so_far: effort.guardrail.judge(*so_far.seconds).sure)
    verdict = effort.guardrail.judge(*taken.seconds)
    chosen, ratio = (winner, verdict.ratio) if verdict.accepted else (default, 1.0)
    return RaggedChoice(chosen, ratio, measured, time.perf_counter() - start)


class _Calls:
    """Programs bound to storage that all configurations share as far as it has the same size: only time matters."""

    def __init__(self, operator: RaggedOperator, structure: Structure, threads: int, seed: int) -> None:
        self._operator, self._structure, self._threads, self._seed = operator, structure, threads, seed
        self._calls: dict[Config, Call] = {}
        self._storage: dict[tuple[str, int], np.ndarray] = {}

    def bound(self, config: Config) -> Call:
        """Compile and bind a configuration; once."""
        if config not in self._calls:
            run = Executable(self._operator.program(config), threads=self._threads)
            sizes = {name: self._structure.size(tensor) for name, tensor in run.program.tensors().items()
                     if tensor.local is None}
            rng = np.random.default_rng(self._seed)
            for name, size in sizes.items():
                if (name, size) not in self._storage:
                    self._storage[name, size] = rng.standard_normal(size, dtype=np.float32)
            storage = {name: self._storage[name, size] for name, size in sizes.items()}
            self._calls[config], _ = run.bind(self._structure, **storage)
        return self._calls[config]


def _measured(calls: _Calls, configs: Sequence[Config], effort: RaggedEffort) -> dict[Config, float]:
    """Least seconds of those that were started."""
    taken = race([calls.bound(config) for config in configs], effort=effort.race, clock=time.perf_counter)
    return {config: min(seconds) for config, seconds in zip(configs, taken.seconds, strict=True) if seconds}


def _key(operator: RaggedOperator, structure: Structure, threads: int) -> Mapping[str, Any]:
    return {"operator": operator.name, "space": operator.space.digest(), "alike": dict(operator.alike(structure)),
            "threads": threads, "machine": machine_digest(), "kernels": ragged_kernels_digest()}
