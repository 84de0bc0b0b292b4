"""Fused or not: how a product of three matrices is decided, stored and executed.

    rule -> shortlist by a cost model -> race of fused candidates -> duel with the fastest unfused variant ->
    guardrail -> cache
"""


import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from sparloom.errors import NotDecided, Unsupported
from sparloom.fusion import (
    Executor,
    Pair,
    TileFusionSpace,
    TileSchedule,
    Variant,
    Workspace,
    schedule_tiles,
    unfused_schedule,
)
from sparloom.jit import NativeCall
from sparloom.measure import cache_levels, checked_threads
from sparloom.ops import Operands
from sparloom.space import Config
from sparloom.tuning.cache import PlanCache, Summary
from sparloom.tuning.fusion_problem import Estimate, PairCostModel, Problem
from sparloom.tuning.machine import FUSED_SOURCES, kernels_digest, machine_digest, machine_rates
from sparloom.tuning.racing import Call, Clock, Decision, Guardrail, MeasurementBudget, challenge, race, trials_of

log = logging.getLogger(__name__)

Fuse = Literal["auto", "never", "always"]
"""Whether to fuse: by measurement, never or always."""

FORMS = ("c_transposed", "addends")
MAX_FUSING = {"ct_size": 16384, "cache_bytes": 1 << 62}  # tiles that fuse the most
MAX_SAME_TILES = 2  # candidates with the same tiles

MIN_FUSED_ROWS = 0.05  # share of loop two below which nothing fused is measured


@dataclass(frozen=True)
class FusionConfig:
    """One way to compute a product of three matrices.

    Args:
        fused: False: loop two begins after loop one; tiles are those of `unfused_schedule`.
        ct_size: maximum iterations of a coarse tile; 0 if not fused.
        cache_bytes: of one thread, for the inspector; 0 if not fused.
    """

    fused: bool
    ct_size: int
    cache_bytes: int
    variant: Variant
    threads: int

    @classmethod
    def of(cls, config: Config, *, threads: int) -> "FusionConfig":
        """Convert a point of `sparloom.fusion.TileFusionSpace`."""
        variant = Variant(
            local=bool(config["local"]), stream=bool(config["stream"]), stream_first=bool(config["stream_first"]),
            prefetch_bytes=1024 * config["prefetch"])
        return cls(config["ct_size"] > 0, config["ct_size"], 1024 * config["cache"], variant, threads)

    @property
    def key(self) -> str:
        """The point of the space as text, as `TileFusionSpace(...).parse` reads it."""
        variant = self.variant
        numbers = {"local": int(variant.local), "stream": int(variant.stream),
                   "stream_first": int(variant.stream_first), "prefetch": variant.prefetch_bytes // 1024}
        values = {"ct_size": self.ct_size, "cache": self.cache_bytes // 1024, **numbers}
        return ",".join(f"{name}={value}" for name, value in values.items())


Decided = tuple[FusionConfig, Decision]


@dataclass(frozen=True)
class PlanKey:
    """Cache key of a decision.

    Args:
        form: of the operands: "c_transposed", "addends" or "".
        pattern: digest of A's pattern.
        right: digest of B's pattern; "" if B is dense.
        inner: columns of B; 0 if it is sparse.
        fuse: as requested.
        machine: digest of its description.
        kernels: digest of the sources of kernels and inspector.
    """

    op: str
    form: str
    pattern: str
    right: str
    inner: int
    width: int
    dtype: str
    threads: int
    fuse: str
    machine: str
    kernels: str

    @classmethod
    def of(cls, problem: Problem, *, threads: int, fuse: str) -> "PlanKey":
        """Make the key of a problem on this machine."""
        pattern = problem.pattern.digest()
        right = "" if problem.right is None else pattern if problem.right is problem.pattern else problem.right.digest()
        form = ",".join(name for name in FORMS if getattr(problem.op, name, False))
        return cls(
            problem.op.name, form, pattern, right, problem.inner, problem.width, problem.dtype, threads, fuse,
            machine_digest(), kernels_digest(FUSED_SOURCES))


class ExecutorFactory:
    """Makes executors of one problem, which share D1 and equal schedules: only one at a time may execute."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._workspace = Workspace()
        self._schedules: dict[tuple[int, int, int], TileSchedule] = {}

    def executor(self, config: FusionConfig) -> Executor:
        """Make an executor.

        Raises:
            Unsupported: loops of different length cannot be fused.
        """
        return Executor(self.problem.op, self.schedule(config), threads=config.threads, variant=config.variant,
                        workspace=self._workspace)

    def calls(self, operands: Operands, configs: Sequence[FusionConfig]) -> list[NativeCall]:
        """Bind executors to operands and one common result."""
        executors = [self.executor(config) for config in configs]
        result = executors[0].result(operands)
        return [executor.bind(operands, result) for executor in executors]

    def schedule(self, config: FusionConfig) -> TileSchedule:
        """Make the schedule: by the inspector, or of both loops in turn if they are not fused."""
        key = config.threads, config.cache_bytes, config.ct_size
        if key not in self._schedules:
            self._schedules[key] = schedule_tiles(
                self.problem.loops(), threads=config.threads, cache_bytes=config.cache_bytes,
                ct_size=config.ct_size,
            ) if config.fused else unfused_schedule(self.problem.graph, threads=config.threads)
        return self._schedules[key]


@dataclass(frozen=True)
class Decider:
    """Decides for one problem.

    Args:
        bind: configurations -> calls that run the product once.
        model: makes the cost model of the shortlist; called if there is one.
        cache_bytes: sum of the private caches of all threads.
        effort: of a race or a duel.
        clock: wall seconds.
    """

    problem: Problem
    bind: Callable[[Sequence[FusionConfig]], Sequence[Call]]
    threads: int
    model: Callable[[], PairCostModel]
    cache_bytes: float
    effort: MeasurementBudget = MeasurementBudget()  # noqa: RUF009 (it is frozen)
    clock: Clock = time.perf_counter

    def never(self) -> Decided:
        """Choose the fastest variant of unfused loops."""
        space = TileFusionSpace(self.problem.op.name)
        return self._fastest([
            FusionConfig.of(config, threads=self.threads) for config in space if config["ct_size"] == 0])

    def always(self) -> Decided:
        """Choose the fastest of the fused candidates."""
        return self._fastest(self._shortlist())

    def auto(self, unfused: Decided) -> Decided:
        """Choose the fastest of the fused candidates if it passes the guardrail against unfused loops."""
        start, (baseline, before) = self.clock(), unfused
        objection = self._objection()
        if objection:
            return baseline, Decision("rule", objection, (), before.executions,
                                      before.seconds + self.clock() - start)
        configs = [*self._shortlist(), baseline]
        calls = self.bind(configs)
        run = race(calls[:-1], effort=self.effort, clock=self.clock)
        outcome = challenge(
            [config.key for config in configs], run, (run.winner, len(configs) - 1), [(calls[run.winner], calls[-1])],
            guardrail=Guardrail(), effort=self.effort, clock=self.clock)
        return configs[outcome.chosen], Decision(
            "measured", outcome.verdict.text, outcome.trials,
            before.executions + run.executions + outcome.duel.executions, before.seconds + self.clock() - start)

    def _objection(self) -> str:
        """Say why nothing fused is measured; "" if it is."""
        problem = self.problem
        if not problem.fusible:
            return "the loops differ in length"
        if problem.total_bytes <= self.cache_bytes:
            return f"all {problem.total_bytes / 2**20:.1f} MiB lie in the caches of the cores"
        fused = problem.sketch.tiling(**MAX_FUSING, threads=self.threads).fused_rows
        return "" if fused >= MIN_FUSED_ROWS else f"{fused:.1%} of loop two could be fused"

    def _fastest(self, configs: Sequence[FusionConfig]) -> Decided:
        start = self.clock()
        run = race(self.bind(configs), effort=self.effort, clock=self.clock)
        trials = trials_of([config.key for config in configs], run.seconds)
        return configs[run.winner], Decision(
            "measured", f"fastest of {len(configs)}", trials, run.executions, self.clock() - start)

    def _shortlist(self) -> list[FusionConfig]:
        """Choose fused candidates with low scores, best first, but few with the same tiles."""
        space = [config for config in TileFusionSpace(self.problem.op.name) if config["ct_size"]]
        alike: Counter[int] = Counter()
        chosen: dict[tuple[object, ...], FusionConfig] = {}
        for index in np.argsort(self.model().score(self.problem, space), kind="stable"):
            config = FusionConfig.of(space[index], threads=self.threads)
            tiles = self.problem.sketch.tiling(
                ct_size=config.ct_size, cache_bytes=config.cache_bytes, threads=self.threads).tiles
            if (tiles, config.variant) not in chosen and alike[tiles] < MAX_SAME_TILES:
                chosen[tiles, config.variant] = config
                alike[tiles] += 1
        return list(chosen.values())[:self.effort.candidates]


@dataclass(frozen=True)
class PairPlan:
    """Plan by which a product of three matrices is computed from now on.

    Args:
        executor: for operands with the planned patterns: `executor.bind(operands, result)` makes the call.
    """

    choice: FusionConfig
    decision: Decision
    executor: Executor


def plan_pair(
    op: Pair, operands: Operands, *, fuse: Fuse = "auto", threads: int | None = None, cache: PlanCache | None = None,
    replay_only: bool = False,
) -> PairPlan:
    """Choose how to compute a product of three matrices, and prepare it.

    The first call for a pattern and a width measures a few candidates on the operands; later calls, in any process,
    find the decision in the cache.

    Args:
        fuse: "auto": fused loops if they pass the guardrail, else unfused ones; "never" and "always": the fastest of
            one kind.
        threads: of every call (default: all processors that this process may use).
        cache: of decisions (default: the folder of this user).
        replay_only: measure nothing.

    Raises:
        TypeError, ValueError: `fuse` is none of the three, or `threads` is too large or no number.
        Unsupported: fuse="always" for loops of different length.
        NotDecided: `replay_only`, and no decision is stored for these patterns, extents, threads and this machine.
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
    decider = Decider(
        problem, lambda choices: ExecutorFactory(problem).calls(operands, choices), threads,
        lambda: Estimate(machine_rates(cache, threads=threads), threads), threads * cache_levels().get(2, 0))
    choice, decision = _decide(decider, key, cache)
    log.info("%s, %s, width %d: %s; %s; %d executions, %.2f s", op.name, problem.pattern, problem.width, choice.key,
             decision.reason, decision.executions, decision.seconds)
    return PairPlan(choice, decision, ExecutorFactory(problem).executor(choice))


def get_pair(cache: PlanCache, key: PlanKey) -> Decided | None:
    """Look up a decision; None if there is none."""
    return cache.get("pair", asdict(key), lambda value: (
        FusionConfig.of(TileFusionSpace(key.op).parse(value["choice"]), threads=key.threads),
        Decision.from_json(value["decision"])))


def put_pair(cache: PlanCache, key: PlanKey, choice: FusionConfig, decision: Decision) -> None:
    """Store a decision in place of the previous one."""
    shapes = f"{key.width}" + (f", inner {key.inner}" if key.inner else "") + f", {key.dtype}"
    cache.put("pair", asdict(key), {"choice": choice.key, "decision": decision.to_json()}, summary=Summary(
        " ".join(filter(None, (key.op, key.form, f"fuse={key.fuse}"))), shapes, choice.key, decision.reason,
        decision.speedup(choice.key), FUSED_SOURCES))


def _replayed(problem: Problem, key: PlanKey, cache: PlanCache) -> PairPlan | None:
    """Prepare a stored decision; None if there is none, or if it cannot be executed here."""
    found = get_pair(cache, key)
    if found is None:
        return None
    choice, decision = found
    try:
        return PairPlan(choice, decision, ExecutorFactory(problem).executor(choice))
    except Unsupported as error:
        log.warning("%s was decided, but %s: it is decided anew", choice.key, error)
        return None


def _decide(decider: Decider, key: PlanKey, cache: PlanCache) -> Decided:
    """Decide and store; "auto" is based on the decision of "never"."""
    if key.fuse == "auto":
        unfused = replace(key, fuse="never")
        before = get_pair(cache, unfused) or _decide(decider, unfused, cache)
        decide = partial(decider.auto, before)
    else:
        decide = decider.always if key.fuse == "always" else decider.never
    choice, decision = decided = decide()
    put_pair(cache, key, choice, decision)
    return decided
