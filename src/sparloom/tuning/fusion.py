"""One way to compute a product of three matrices: what is decided, what is kept, what is executed.

What a decision is found again by.

From choices to what executes them: schedules and executors.

The constants of decisions, and the rule that needs no clock.

Which few of all candidates are worth a measurement.

How a product of three matrices is decided: a rule, a shortlist by a cost model, a race, a guardrail.

Plans: a choice, why it was made, and the executor of it.
"""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from sparloom.errors import NotDecided, SchemaError, Unsupported
from sparloom.fusion import (
    LEAST_FUSED_RATIO,
    Executor,
    Pair,
    TileSchedule,
    Variant,
    Workspace,
    schedule_tiles,
    unfused_schedule,
)
from sparloom.jit import NativeCall
from sparloom.measure import cache_levels, checked_threads
from sparloom.ops import Operands
from sparloom.space import Config, GridSpace, TileFusionSpace
from sparloom.tuning.cache import PlanCache, Summary
from sparloom.tuning.fusion_problem import ORDERS, Estimate, PairCostModel, Problem, has_places, metis_is_installed
from sparloom.tuning.machine import (
    FUSED_SOURCES,
    busy_seconds,
    kernels_digest,
    machine_digest,
    machine_rates,
    watch_load,
)
from sparloom.tuning.racing import Call, Clock, Decision, Guardrail, MeasurementBudget, Race, Trial, Verdict, duel, race
from sparloom.tuning.search import Evolution, best

__all__ = [
    "Decided", "Decider", "ExecutorFactory", "Fuse", "FusionConfig", "PairPlan", "PlanKey", "Policy", "get_order",
    "get_pair", "plan_pair", "put_order", "put_pair", "shortlist", "unfused_configs",
]


@dataclass(frozen=True)
class FusionConfig:
    """Fused or not, in which tiles, in which order of iterations, by which variant of the kernels.

    Args:
        fused: otherwise loop two begins after loop one; then tiles and order are those of `unfused_schedule`.
        ct_size: most iterations of a coarse tile; 0 where nothing is fused.
        cache_bytes: of one thread, for the inspector; 0 where nothing is fused.
        order: of the iterations: natural, bandwidth, partition or metis, see `sparloom.fusion.inspector`.

    Raises:
        ValueError: an unknown order, no thread, or sizes that do not belong to it.
    """

    fused: bool
    ct_size: int
    cache_bytes: int
    order: str
    variant: Variant
    threads: int

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r} is not one of {', '.join(ORDERS)}")
        if self.threads < 1:
            raise ValueError(f"{self.threads} threads: give at least 1")
        if self.fused != (self.ct_size > 0) or self.fused != (self.cache_bytes > 0):
            raise ValueError(f"fused is {self.fused}, ct_size {self.ct_size} and cache_bytes {self.cache_bytes}: both "
                             f"are above 0 where loops are fused, else 0")
        if not self.fused and self.order != "natural":
            raise ValueError(f"order {self.order!r} of loops that are not fused: take natural")

    @classmethod
    def of(cls, config: Config, *, threads: int) -> "FusionConfig":
        """Read a point of `sparloom.space.TileFusionSpace`."""
        variant = Variant(
            local=bool(config["local"]), stream=bool(config["stream"]), stream_first=bool(config["stream_first"]),
            prefetch_bytes=1024 * config["prefetch"])
        return cls(config["ct_size"] > 0, config["ct_size"], 1024 * config["cache"], config["order"], variant, threads)

    @property
    def key(self) -> str:
        """The point of the space as text, which `TileFusionSpace(...).parse` reads."""
        variant = self.variant
        numbers = {"local": int(variant.local), "stream": int(variant.stream),
                   "stream_first": int(variant.stream_first), "prefetch": variant.prefetch_bytes // 1024}
        values = {"ct_size": self.ct_size, "cache": self.cache_bytes // 1024, "order": self.order, **numbers}
        return ",".join(f"{name}={value}" for name, value in values.items())

    def to_json(self) -> dict[str, Any]:
        """Write as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FusionConfig":
        """Read what `to_json` wrote.

        Raises:
            SchemaError: a field is missing, unknown or of another type.
        """
        variant = _typed(Variant, value.get("variant") if isinstance(value, Mapping) else None)
        return _typed(cls, {**value, "variant": variant})


def _typed(kind: type, value: Any) -> Any:
    """Fill a dataclass of plain values, whose types must be exactly those it declares."""
    names = {field.name: field.type for field in fields(kind)}
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise SchemaError(f"{kind.__name__} has the fields {', '.join(names)}, got {value!r}")
    for name, declared in names.items():
        if type(value[name]) is not declared:
            raise SchemaError(f"{name} of {kind.__name__} is {value[name]!r}: it must be of type {declared.__name__}")
    try:
        return kind(**value)
    except ValueError as error:
        raise SchemaError(str(error)) from error


FORMS = ("c_transposed", "addends")

@dataclass(frozen=True)
class PlanKey:
    """All that a decision depends on.

    Args:
        form: of its operands: "c_transposed", "addends" or "".
        pattern: digest of A's pattern.
        right: digest of B's, "" where B is dense.
        inner: columns of B, 0 where it is sparse.
        fuse: what was asked for.
        machine: digest of its description.
        kernels: digest of the sources of kernels and inspector: after a change all is decided anew.
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
        """Name a decision about a problem, on this machine."""
        pattern = problem.pattern.digest()
        right = "" if problem.right is None else pattern if problem.right is problem.pattern else problem.right.digest()
        form = ",".join(name for name in FORMS if getattr(problem.op, name, False))
        return cls(
            problem.op.name, form, pattern, right, problem.inner, problem.width, problem.dtype, threads, fuse,
            machine_digest(), kernels_digest(FUSED_SOURCES))

    def digest(self) -> str:
        """Hash the key; 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


Tiles = tuple[str, int, int, int]
"""Order, threads, cache and coarse tile: what a schedule depends on."""


class ExecutorFactory:
    """Makes executors of one problem. They share D1 and equal schedules: one at a time may execute."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._workspace = Workspace()
        self._schedules: dict[Tiles, TileSchedule] = {}

    def executor(self, choice: FusionConfig) -> Executor:
        """Make what executes a choice.

        Raises:
            Unsupported: loops of different length cannot be fused; METIS is not installed.
        """
        return Executor(self.problem.op, self.schedule(choice), threads=choice.threads, variant=choice.variant,
                        order=self.problem.order(choice.order), workspace=self._workspace)

    def calls(self, operands: Operands, choices: Sequence[FusionConfig]) -> list[NativeCall]:
        """Bind executors of choices to operands and one result."""
        executors = [self.executor(choice) for choice in choices]
        result = executors[0].result(operands)
        return [executor.bind(operands, result) for executor in executors]

    def schedule(self, choice: FusionConfig) -> TileSchedule:
        """Inspect, or list both loops where nothing is to be fused."""
        key = (choice.order, choice.threads, choice.cache_bytes, choice.ct_size)
        if key not in self._schedules:
            self._schedules[key] = self._inspected(choice) if choice.fused else unfused_schedule(
                self.problem.graph, threads=choice.threads)
        return self._schedules[key]

    def _inspected(self, choice: FusionConfig) -> TileSchedule:
        return schedule_tiles(self.problem.loops(choice.order), threads=choice.threads,
                              cache_bytes=choice.cache_bytes, ct_size=choice.ct_size)


LARGEST = {"ct_size": 16384, "cache_bytes": 1 << 62}  # tiles that fuse the most


@dataclass(frozen=True)
class Policy:
    """How decisions are made.

    Args:
        least_fused_rows: where less of loop two can be fused, in any order tried, nothing fused is measured.
        enough_fused_rows: where so much can be, no order but the natural one is tried.
        order_row_bytes: nor where rows of D1 are shorter: matrices stay as they are, so every row of B, C and D that
            is met out of turn costs some 20 ns, and fusion saves at most a row of D1 written and read.
        order_seconds, order_nonzeros: nor of a pattern on which it may take longer to make one, at so many nonzeros
            per second.
        effort: of measurements.
        guardrail: what fused loops must pass.
    """

    least_fused_rows: float = 0.05
    enough_fused_rows: float = 0.8
    order_row_bytes: int = 1024
    order_seconds: float = 2.0
    order_nonzeros: float = 4e6
    effort: MeasurementBudget = field(default_factory=MeasurementBudget)
    guardrail: Guardrail = field(default_factory=Guardrail)

    def try_fusion(self, problem: Problem, *, threads: int, cache_bytes: float) -> tuple[tuple[str, ...], str]:
        """Choose the orders in which fusion is tried; without one, say why it is not.

        Args:
            cache_bytes: of the caches that threads do not share, all together.
        """
        if not problem.fusible:
            return (), "the loops differ in length"
        if _touched(problem) <= cache_bytes:
            return (), f"all {_touched(problem) / 2**20:.1f} MiB lie in the caches of the cores"
        orders = self.orders(problem, threads=threads)
        fused = self.fused_rows(problem, orders, threads=threads)
        if fused < self.least_fused_rows:
            return (), f"{fused:.1%} of loop two could be fused (orders: {', '.join(orders)})"
        return orders, ""

    def orders(self, problem: Problem, *, threads: int) -> tuple[str, ...]:
        """Choose the orders of iterations that are tried, "natural" first; makes some of them.

        The paper's order is tried below its ratio; one by parts where too little is fused and the graph can be cut:
        our own, and that of METIS where even that does not fuse half of what is enough.
        """
        tried = ("natural",)
        natural = self.fused_rows(problem, tried, threads=threads)
        affordable = problem.graph.nnz <= self.order_seconds * self.order_nonzeros
        if natural >= self.enough_fused_rows or problem.row_bytes < self.order_row_bytes or not affordable:
            return tried
        if natural / 2 < LEAST_FUSED_RATIO:
            tried += ("bandwidth",)
        if has_places(problem.graph):
            tried += ("partition",)
            if metis_is_installed() and 2 * self.fused_rows(problem, tried, threads=threads) < self.enough_fused_rows:
                tried += ("metis",)
        return tried

    def fused_rows(self, problem: Problem, orders: tuple[str, ...], *, threads: int) -> float:
        """Largest share of loop two that could be fused in any of the orders."""
        return max(problem.sketch(order).tiling(**LARGEST, threads=threads).fused_rows for order in orders)


def _touched(problem: Problem) -> int:
    """Bytes of all operands, D1 and D."""
    value, middle = problem.element_bytes, problem.graph.cols * problem.row_bytes
    sparse = (value + 4) * (problem.pattern.nnz + (0 if problem.right is None else problem.right.nnz))
    dense = problem.pattern.cols * problem.inner if problem.right is None else problem.right.cols * problem.width
    return sparse + middle + value * (dense + problem.pattern.rows * problem.width)


ALIKE = 2  # candidates with the same tiles
EVOLUTION = Evolution(population=512, generations=12, patience=4, mutation=0.2, tournament=3, seed=0)
RANKED = 512  # of the space, among which the shortlist is taken


def unfused_configs(space: GridSpace) -> list[Config]:
    """List the points that fuse nothing."""
    return [config for config in space if config["ct_size"] == 0]


def shortlist(
    model: PairCostModel, problem: Problem, space: GridSpace, *, threads: int, count: int,
) -> list[Config]:
    """Take fused candidates with low scores, the best first, but few that have the same tiles.

    Args:
        threads: of the executor.
        count: at most so many.
    """
    ranked = best(lambda configs: model.score(problem, configs), space, min(RANKED, len(space)), evolution=EVOLUTION)
    alike: Counter[tuple[str, int]] = Counter()
    chosen: dict[tuple[object, ...], Config] = {}
    for config in (each.config for each in ranked):
        if config["ct_size"] == 0:
            continue
        tiling = problem.sketch(config["order"]).tiling(
            ct_size=config["ct_size"], cache_bytes=1024 * config["cache"], threads=threads)
        tiles = (config["order"], tiling.tiles)
        program = (*tiles, *(config[name] for name in ("local", "stream", "stream_first", "prefetch")))
        if program not in chosen and alike[tiles] < ALIKE:
            chosen[program] = config
            alike[tiles] += 1
    return list(chosen.values())[:count]


Decided = tuple[FusionConfig, Decision]


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
    bind: Callable[[Sequence[FusionConfig]], Sequence[Call]]
    threads: int
    policy: Policy
    model: Callable[[], PairCostModel]
    cache_bytes: float
    clock: Clock

    def never(self) -> Decided:
        """Take the fastest variant of unfused loops."""
        space = TileFusionSpace(self.problem.op.name, ("natural",))
        return self._fastest([FusionConfig.of(config, threads=self.threads) for config in unfused_configs(space)])

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

    def _fastest(self, choices: Sequence[FusionConfig]) -> Decided:
        start = self.clock()
        run = race(self.bind(choices), effort=self.policy.effort, clock=self.clock)
        return choices[run.winner], Decision(
            "measured", f"fastest of {len(choices)}", _trials(choices, run.seconds), run.executions,
            self.clock() - start)

    def _judge(self, taken: Race) -> Verdict:
        return self.policy.guardrail.judge(*taken.seconds)

    def _shortlist(self, orders: Sequence[str]) -> list[FusionConfig]:
        configs = shortlist(self.model(), self.problem, TileFusionSpace(self.problem.op.name, orders),
                            threads=self.threads, count=self.policy.effort.candidates)
        return [FusionConfig.of(config, threads=self.threads) for config in configs]


def _trials(choices: Sequence[FusionConfig], seconds: Sequence[tuple[float, ...]]) -> tuple[Trial, ...]:
    return tuple(Trial(choice.key, taken) for choice, taken in zip(choices, seconds, strict=True))


log = logging.getLogger(__name__)

Fuse = Literal["auto", "never", "always"]


@dataclass(frozen=True)
class PairPlan:
    """How a product of three matrices is computed from now on.

    Args:
        executor: for operands on the patterns that were planned for: `executor.bind(operands, result)` gives the call.
    """

    choice: FusionConfig
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
        problem, lambda choices: ExecutorFactory(problem).calls(operands, choices), threads, policy,
        lambda: cost_model or Estimate(machine_rates(cache, threads=threads), threads),
        threads * cache_levels().get(2, 0), clock)
    choice, decision = _decide(decider, key, cache)
    log.info("%s, %s, width %d: %s; %s; %d executions, %.2f s", op.name, problem.pattern, problem.width, choice.key,
             decision.reason, decision.executions, decision.seconds)
    return PairPlan(choice, decision, ExecutorFactory(problem).executor(choice))


def get_pair(cache: PlanCache, key: PlanKey) -> Decided | None:
    """Look up what was decided; None if nothing was."""
    return cache.get("pair", asdict(key), lambda value: (
        FusionConfig.from_json(value["choice"]), Decision.from_json(value["decision"])))


def put_pair(cache: PlanCache, key: PlanKey, choice: FusionConfig, decision: Decision, *, busy: str = "") -> None:
    """Store a decision in place of the one there was.

    Args:
        busy: why the machine was busy, if it was: then this process alone finds the decision, see `busy_seconds`.
    """
    shapes = f"{key.width}" + (f", inner {key.inner}" if key.inner else "") + f", {key.dtype}"
    cache.put("pair", asdict(key), {"choice": choice.to_json(), "decision": decision.to_json()}, summary=Summary(
        " ".join(filter(None, (key.op, key.form, f"fuse={key.fuse}"))), shapes, choice.key, decision.reason,
        decision.speedup(choice.key), FUSED_SOURCES), remember_seconds=busy_seconds(busy, decision.seconds))


def get_order(cache: PlanCache, pattern: str, name: str, *, rows: int) -> np.ndarray | None:
    """Look up an order of the rows of a pattern, given by its digest; None if none was stored."""
    def parse(content: bytes) -> np.ndarray:
        order = np.frombuffer(content, "<i4").astype(np.int32)
        if order.shape != (rows,) or not np.array_equal(np.sort(order), np.arange(rows)):
            raise ValueError(f"{order.size} numbers are no order of {rows} rows")
        return order

    return cache.get_bytes("order", _order_key(pattern, name), parse)


def put_order(cache: PlanCache, pattern: str, name: str, order: np.ndarray) -> None:
    """Store an order: making it may take longer than many executions.

    Raises:
        ValueError: it is not one axis of int32.
    """
    if order.dtype != np.int32 or order.ndim != 1:
        raise ValueError(f"an order of {order.dtype} and {order.ndim} axes: give one axis of int32")
    cache.put_bytes("order", _order_key(pattern, name), order.astype("<i4").tobytes(), summary=Summary(
        name, f"{order.size} rows", sources=FUSED_SOURCES))


def _order_key(pattern: str, name: str) -> dict[str, str]:
    return {"pattern": pattern, "order": name, "kernels": kernels_digest(FUSED_SOURCES)}


def _replayed(problem: Problem, key: PlanKey, cache: PlanCache) -> PairPlan | None:
    """What was decided before, made ready; None if nothing was, or if it cannot be made here."""
    found = get_pair(cache, key)
    if found is None:
        return None
    choice, decision = found
    if choice.order != "natural":
        order = get_order(cache, key.pattern, choice.order, rows=problem.pattern.rows)
        if order is not None:
            problem.keep_order(choice.order, order)
    try:
        return PairPlan(choice, decision, ExecutorFactory(problem).executor(choice))
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
            before = get_pair(cache, unfused) or _decide(decider, unfused, cache)
            decided, busy = _watched(lambda: decider.auto(before), cache)
    choice, decision = decided
    put_pair(cache, key, choice, decision, busy=busy)
    if choice.order != "natural":
        put_order(cache, key.pattern, choice.order, decider.problem.order(choice.order))
    return decided


def _watched(decide: Callable[[], Decided], cache: PlanCache) -> tuple[Decided, str]:
    """Decide, and say why the machine was busy meanwhile; "" if it was not."""
    watch = watch_load(keep_busy=cache.keep_busy)
    with watch.over():
        decided = decide()
    return decided, watch.close()
