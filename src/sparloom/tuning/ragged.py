"""Schedules of ragged operators: searched by a cost model, checked by measurement, stored.

    cache  ->  the stored schedule
    else   a sample of the space, raced  ->  an additive cost model  ->  its best configurations of the whole space,
           raced with the best of the sample and the default  ->  the fastest, if it passes the guardrail

Source: CoRa leaves schedules to hand and grid search (§6, §7.2 "manual scheduling and grid search").
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.measure import checked_threads
from sparloom.models import Static
from sparloom.ragged import (
    LENGTHS,
    PANEL,
    Executable,
    NormSchedule,
    Program,
    SoftmaxSchedule,
    Structure,
    scheduled_layer_norm,
    scheduled_softmax,
    tiled_trmm,
    tiled_vgemm,
)
from sparloom.space import Config, GridSpace, NormSpace, RaggedProductSpace, SoftmaxSpace
from sparloom.tuning.cache import PlanCache, Summary
from sparloom.tuning.machine import RAGGED_SOURCES, kernels_digest, machine_digest
from sparloom.tuning.racing import Call, Guardrail, MeasurementBudget, Race, challenge, race
from sparloom.tuning.search import Evolution, best

__all__ = [
    "RaggedBudget", "RaggedChoice", "RaggedOperator", "choose_schedule", "product_operators", "put_schedule",
    "token_operators",
]

log = logging.getLogger(__name__)

EVOLUTION = Evolution(population=64, generations=8, patience=3, mutation=0.2, tournament=3, seed=0)
MAX_TOKENS = 4096  # of the part of a batch that is measured


@dataclass(frozen=True)
class RaggedOperator:
    """An operator that has several schedules.

    Args:
        name: including all sizes that are the same for every batch.
        kind: makes a schedule from the values of a configuration.
        scheduled: makes the program of a schedule.
        alike: numbers of a batch; batches with equal numbers share a schedule.
        part: part of a batch that suffices for measurements.
    """

    name: str
    space: GridSpace
    kind: Callable[..., Any]
    scheduled: Callable[[Any], Program]
    alike: Callable[[Structure], Mapping[str, int]]
    part: Callable[[Structure], Structure]

    def schedule(self, config: Config) -> Any:
        """Return the schedule of a configuration of the space."""
        return self.kind(**{name: value if isinstance(value, str) else int(value) for name, value in config.values})

    def program(self, config: Config) -> Program:
        """Return the program of a configuration."""
        return self.scheduled(self.schedule(config))


@cache
def token_operators(width: int, epsilon: float = 1e-5) -> Mapping[str, RaggedOperator]:
    """Make softmax over the tokens of each sequence, and layer norm of tokens: softmax, norm."""
    return {
        "softmax": RaggedOperator(f"softmax width={width}", SoftmaxSpace("softmax"), SoftmaxSchedule,
                                  lambda schedule: scheduled_softmax(width, schedule), _sequences, _some_sequences),
        "norm": RaggedOperator(f"norm width={width},epsilon={epsilon}", NormSpace("norm"), NormSchedule,
                               lambda schedule: scheduled_layer_norm(width, schedule, epsilon=epsilon), _sequences,
                               _some_sequences)}


def product_operators() -> dict[str, RaggedOperator]:
    """Make vgemm and trmm."""
    def operator(name: str, made: Callable[..., Program]) -> RaggedOperator:
        return RaggedOperator(name, RaggedProductSpace(name, panel=PANEL), dict, lambda sizes: made(**sizes), _sizes,
                              lambda structure: structure)

    return {"vgemm": operator("vgemm", tiled_vgemm), "trmm": operator("trmm", tiled_trmm)}


def _sequences(structure: Structure) -> dict[str, int]:
    """Logarithms of the tokens and of the mean length, and twice the longest length over the mean, rounded."""
    lengths = np.asarray(structure.table(LENGTHS))
    if not lengths.size or not lengths.sum():
        return {"tokens": 0, "mean": 0, "spread": 0}
    mean = float(lengths.mean())
    return {"tokens": min(round(np.log2(lengths.sum())), 14), "mean": round(np.log2(mean)),
            "spread": round(2 * float(lengths.max()) / mean)}


def _some_sequences(structure: Structure) -> Structure:
    """Pick sequences of all lengths evenly, at least one."""
    lengths = np.sort(np.asarray(structure.table(LENGTHS)))[::-1]
    step = max(1, round(lengths.sum() / MAX_TOKENS))
    return Structure({LENGTHS: lengths[min(step // 2, lengths.size - 1) :: step]}) if step > 1 else structure


def _sizes(structure: Structure) -> dict[str, int]:
    """Logarithms of the number and of the mean of every length function, rounded."""
    found: dict[str, int] = {}
    for length, value in structure.lengths().items():
        entries = np.asarray(value).reshape(-1)
        found[length.name] = round(np.log2(max(1.0, float(entries.mean())))) if entries.size else 0
        found[f"{length.name} count"] = round(np.log2(max(1, entries.size)))
    return found


@dataclass(frozen=True)
class RaggedBudget:
    """Limits on what a choice may measure.

    Args:
        sample: configurations from which the cost model learns, including the default.
        proposed: configurations of the cost model that are measured in addition.
        race: budget of each race.
        guardrail: that the winner must pass against the default.
        seed: of the sample and of the operands.
    """

    sample: int = 16
    proposed: int = 4
    race: MeasurementBudget = field(default_factory=lambda: MeasurementBudget(
        candidates=20, repetitions=3, executions=120, seconds=20.0))
    guardrail: Guardrail = field(default_factory=Guardrail)
    seed: int = 0


@dataclass(frozen=True)
class RaggedChoice:
    """A schedule and its evidence.

    Args:
        ratio: its seconds over those of the default; 1 for the default.
        measured: number of configurations.
        seconds: that the choice took.
        from_cache: it was made before.
    """

    config: Config
    ratio: float
    measured: int
    seconds: float
    from_cache: bool = False


def choose_schedule(
    operator: RaggedOperator, structure: Structure, *, threads: int, effort: RaggedBudget | None = None,
    plans: PlanCache | None = None, search: bool = True,
) -> RaggedChoice:
    """Choose a schedule for all batches that are similar to this one.

    Args:
        plans: cache of choices (default: of this user).
        search: False: if no choice is stored, take the default without measurements.

    Raises:
        CompileError: no program compiles.
        TypeError, ValueError: `threads` is too large or no number.
    """
    plans = plans or PlanCache.of_this_user()
    threads = checked_threads(threads)
    key = _key(operator, structure, threads)
    cached = _cached(plans, key, operator)
    if cached is not None:
        return cached
    if not search:
        return RaggedChoice(operator.space.default(), 1.0, 0, 0.0)
    part, effort = operator.part(structure), effort or RaggedBudget()
    choice = _searched(operator, part, threads, effort)
    put_schedule(plans, key, choice)
    log.info("%s: %s, %.3f of the seconds of the default, chosen in %.1f s", operator.name, choice.config, choice.ratio,
             choice.seconds)
    return choice


def _cached(plans: PlanCache, key: Mapping[str, Any], operator: RaggedOperator) -> RaggedChoice | None:
    found = plans.get("ragged", key)
    if found is None:
        return None
    try:
        return RaggedChoice(operator.space.parse(found["config"]), float(found["ratio"]), int(found["measured"]),
                            float(found["seconds"]), from_cache=True)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, IllegalSchedule) as error:
        log.warning("cached choice for %s: %s: it is decided anew", operator.name, error)
        return None


def put_schedule(cache: PlanCache, key: Mapping[str, Any], choice: RaggedChoice) -> None:
    """Store a choice in place of the previous one."""
    alike = ", ".join(f"{name}={number}" for name, number in key["alike"].items())
    reason = f"{choice.measured} measured in {choice.seconds:.1f} s"
    cache.put("ragged", key, {
        "config": choice.config.key, "ratio": choice.ratio, "measured": choice.measured, "seconds": choice.seconds,
    }, summary=Summary(key["operator"], alike, choice.config.key, reason, 1 / choice.ratio, RAGGED_SOURCES))


def _searched(operator: RaggedOperator, structure: Structure, threads: int, effort: RaggedBudget) -> RaggedChoice:
    start = time.perf_counter()
    space, default = operator.space, operator.space.default()
    drawn = space.sample(min(effort.sample, len(space)), np.random.default_rng(effort.seed))
    sample = [default, *(config for config in drawn if config != default)]
    calls = _Calls(operator, structure, threads, effort.seed)
    first = _least_seconds(sample, _raced(calls, sample, effort))
    keys = sorted(config.key for config in first)
    seconds = {config.key: each for config, each in first.items()}
    model = Static().fit_table(np.array([[seconds[key] for key in keys]]), keys, space=space)
    ranked = best(model.score_configs, space, min(len(space), len(first) + effort.proposed), evolution=EVOLUTION)
    proposed = [each.config for each in ranked if each.config not in first][:effort.proposed]
    fastest = min(first, key=first.__getitem__)
    finalists = list(dict.fromkeys([default, fastest, *proposed]))
    run = _raced(calls, finalists, effort)
    last = _least_seconds(finalists, run)
    winner, measured = min(last, key=last.__getitem__), len(first) + len(proposed)
    if winner == default:
        return RaggedChoice(default, 1.0, measured, time.perf_counter() - start)
    outcome = challenge(
        [config.key for config in finalists], run, (finalists.index(winner), 0),
        [(calls.bound(winner), calls.bound(default))], guardrail=effort.guardrail, effort=effort.race,
        clock=time.perf_counter)
    ratio = outcome.verdict.ratio if outcome.chosen else 1.0
    return RaggedChoice(finalists[outcome.chosen], ratio, measured, time.perf_counter() - start)


class _Calls:
    """Programs bound to storage that configurations share if it has the same size: only time matters."""

    def __init__(self, operator: RaggedOperator, structure: Structure, threads: int, seed: int) -> None:
        self._operator, self._structure, self._threads, self._seed = operator, structure, threads, seed
        self._calls: dict[Config, Call] = {}
        self._storage: dict[tuple[str, int], np.ndarray] = {}

    def bound(self, config: Config) -> Call:
        """Compile and bind a configuration, once."""
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


def _raced(calls: _Calls, configs: Sequence[Config], effort: RaggedBudget) -> Race:
    return race([calls.bound(config) for config in configs], effort=effort.race, clock=time.perf_counter)


def _least_seconds(configs: Sequence[Config], run: Race) -> dict[Config, float]:
    """Least seconds of the configurations that were started."""
    return {config: min(seconds) for config, seconds in zip(configs, run.seconds, strict=True) if seconds}


def _key(operator: RaggedOperator, structure: Structure, threads: int) -> Mapping[str, Any]:
    return {"operator": operator.name, "space": operator.space.digest(), "alike": dict(operator.alike(structure)),
            "threads": threads, "machine": machine_digest(), "kernels": kernels_digest(RAGGED_SOURCES)}
