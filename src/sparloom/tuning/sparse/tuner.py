"""Decide how one sparse operation runs: what a device offers, a shortlist by a cost model, a race, a guardrail.

On sampled rows:

    default configuration -> shortlist -> race -> duel of the winner with the best baseline, on parts of the sample in
    turn -> the winner, if it passes the guardrail

Baselines are the default configuration of our space and other libraries; the best of them runs if nothing passes. If
the time is too short to measure anything, the default configuration is taken.

`Backend` is the interface of a device, `Arrays` that of its operands and results; `sparloom.tuning.sparse.cpu` and
`cuda` implement both.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from sparloom.ops import (
    SDDMM,
    CsrAttention,
    Op,
    Operands,
    SpMM,
    SpmmMax,
    SpmmMean,
    assert_few_close,
    few_rows,
)
from sparloom.platforms import Family
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import (
    Call,
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
from sparloom.tuning.sparse.inputs import Origin
from sparloom.tuning.sparse.settings import CsrPolicy

log = logging.getLogger(__name__)

SAMPLE_RUNS = 3  # of the default configuration on the sample
MIN_RUNS = 10  # on the sample, below which nothing can be settled: two candidates twice, and the fewest pairs
RACE_SHARE = 0.6  # of the remaining time, for the race; the duel has the rest
BLOCK_ROWS, STRATA = 64, 8  # of samples

EPS: Mapping[str, float] = {"bfloat16": 2.0**-7}
"""Of types that are compared as float32."""

LIBRARY_DTYPES = ("float32", "float64")
"""Types of numbers that libraries on a processor compute with."""

GATHERED_BYTES = 1 << 30  # that a product by gathering may allocate at a time

Product = Callable[[Operands], np.ndarray]
"""Computes with the values of a matrix that has the pattern, and with dense operands; allocates its result.

Numbers are of any type that kernels on the device take, not only of that of the matrix which brought the pattern. One
thread at a time may call it.
"""

Library = Callable[[SparseMatrix, int], Product]
"""Converts the pattern of a matrix to the format that a library prefers, for products by so many threads."""

OPS: Mapping[str, Op] = {
    "spmm": SpMM(), "spmm_mean": SpmmMean(), "spmm_max": SpmmMax(), "sddmm": SDDMM(), "attention": CsrAttention()}


class Arrays(Protocol):
    """Operands and results of a device. Operands have the same class on every device."""

    def dense(self, given: Any, name: str, *, rows: int, axes: int) -> Any:
        """Accept a dense operand.

        Args:
            rows, axes: that it must have.

        Raises:
            TypeError: its type is read by no kernel here, or it is on another device.
            ValueError: it has another shape.
        """

    def array(self, given: Any, name: str) -> Any:
        """Accept an array of any type and shape.

        Raises:
            TypeError: it is no array, or on another device.
        """

    def dtype(self, op: str, operands: Operands) -> str:
        """Name the type of all numbers that an operation reads and writes; part of the key of a decision.

        Raises:
            TypeError: operands are of several types.
        """

    def promoted(self, matrix: Any, *dense: Any) -> tuple[Any, ...]:
        """Convert the values of A and dense operands to one type, where that is done here.

        Args:
            matrix: None: its values are not read.

        Returns:
            `matrix` and `dense`, converted.
        """

    def to_device(self, array: np.ndarray) -> Any:
        """Copy an array to the device, if it is not in the memory of the processor."""

    def multiply(self, one: Any, other: Any) -> Any:
        """Multiply two arrays of one shape, element by element."""

    def take_rows(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Keep some rows of A with all their columns, as `Operands.take_rows`."""

    def gather_operands(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Copy some rows, with the columns they use, to the memory of the processor."""

    def gather_rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        """Copy some rows of a result to the memory of the processor."""

    def check_out(
        self, out: Any, shape: tuple[int, ...], operands: Operands, inputs: Sequence[tuple[str, Any]], origin: Origin,
    ) -> Any:
        """Accept an array for the result.

        Args:
            inputs: arrays of the call as its caller has them, or None, with their names in messages.
            origin: the arrays of A.

        Raises:
            TypeError: it is no array, or of another type.
            ValueError: it has another shape, is read-only, has gaps, or shares memory with an input.
        """

    def copy(self, result: Any, out: Any) -> None:
        """Copy the result of a library to where the caller wants it."""


class CsrCostModel(Protocol):
    """Ranks configurations of one operation for one problem."""

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score, (configs,): low = fast."""


class Backend(Protocol):
    """Kernels and libraries of a device, and its clock.

    Args:
        threads: of every call; 0 on a GPU.
        libraries: operation -> baselines besides the default configuration of our kernels.
        sources: of the kernels, as for `kernels_digest`.
        arrays: operands and results there.
    """

    threads: int
    libraries: Mapping[str, Mapping[str, Library]]
    sources: tuple[str, ...]
    arrays: Arrays

    def kernels(self, op: Op, width: int) -> Family:
        """Make kernels of an operation with their own workspace.

        Raises:
            Unsupported: there are none.
        """

    def space(self, op: Op, width: int) -> ConfigSpace:
        """Configurations of these kernels."""

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List the configurations; for a sample, without those whose benefit only shows on all rows."""

    def default_config(self, op: Op, operands: Operands) -> Config:
        """Choose the configuration that runs if nothing is measured, and that others must beat."""

    def launchable(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        """Compile kernels, and keep the configurations that can be launched."""

    def kind(self, config: Config) -> str:
        """Name what an estimate cannot compare: at least one configuration of each kind is measured."""

    def model(self, cache: PlanCache) -> CsrCostModel:
        """Make the formula that ranks configurations."""

    def policy(self) -> CsrPolicy:
        """Policy of decisions unless a caller gives one."""

    def timer(self, clock: Clock) -> Timer:
        """Make a timer by the given clock, or by the device's own."""

    def signature(self) -> Mapping[str, Any]:
        """Conditions that times depend on: threads, machine and kernels; part of the cache key of a decision."""


class Case(NamedTuple):
    """Subject of one decision: an operation with the shapes of its dense operands and the type of all numbers.

    Args:
        shapes: of the dense operands, each without its first axis.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str

    @property
    def operation(self) -> Op:
        """The operation, attention with as many heads as its operands."""
        return CsrAttention(self.shapes[0][0]) if self.op == "attention" else OPS[self.op]


@dataclass(frozen=True)
class CsrChoice:
    """Choice of a decision: a library, or a configuration of our kernels.

    Args:
        library: its name; "" for our own kernels.
        config: key of a point of the space; "" for a library.
    """

    library: str = ""
    config: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @property
    def name(self) -> str:
        """Its name among trials."""
        return self.library or self.config


@dataclass(frozen=True)
class CsrPlan:
    """Plan by which one operation on one matrix runs from now on.

    Args:
        space: name of the space of our kernels.
    """

    choice: CsrChoice
    decision: Decision
    space: str = "cpu_kernels"

    @cached_property
    def config(self) -> Config:
        """Configuration of our kernels, if they were chosen."""
        return Config.parse(self.space, self.choice.config)


class CandidateSet:
    """Candidates and baselines, bound to the parts of a sample on request.

    Args:
        own: configurations of our kernels, the default one first; the libraries follow.
    """

    def __init__(
        self, op: Op, backend: Backend, own: Sequence[Config], libraries: Mapping[str, Library],
        parts: Sequence[Operands],
    ) -> None:
        self.own, self.parts = own, parts
        self.names = [*(config.key for config in own), *libraries]
        self._op, self._backend, self._libraries = op, backend, libraries
        self._families = [backend.kernels(op, part.width) for part in parts]
        self._results = [family.result(part) for family, part in zip(self._families, parts, strict=True)]

    def choice(self, index: int) -> CsrChoice:
        """Name a candidate."""
        name = self.names[index]
        return CsrChoice(config=name) if index < len(self.own) else CsrChoice(library=name)

    def call(self, index: int) -> Call:
        """Bind a candidate to all parts, one after the other."""
        calls = [self._bound(index, part) for part in range(len(self.parts))]

        def run() -> None:
            for call in calls:
                call()

        return run

    def call_or_failure(self, index: int) -> Call:
        """Bind a candidate, or make a call that fails as binding did, so that a race goes on without it."""
        try:
            return self.call(index)
        except Exception as error:
            return partial(_fail, error)

    def pairs(self, one: int, other: int) -> list[tuple[Call, Call]]:
        """Bind two candidates to each part."""
        return [(self._bound(one, part), self._bound(other, part)) for part in range(len(self.parts))]

    def difference(self, winner: int, baseline: int) -> str:
        """Describe where, in some rows, the winner computes something else than the baseline; "" if it does not."""
        operands, name, arrays = self.parts[0], self._op.name, self._backend.arrays
        rows = few_rows(operands.matrix.pattern)
        places = operands.matrix.pattern.nonzeros_of(rows) if name == "sddmm" else rows
        expected, found = (
            arrays.gather_rows(self._computed(index, operands), places) for index in (baseline, winner))
        few = arrays.gather_operands(operands, rows, name)
        try:
            assert_few_close(found, expected, self._op, few, eps=EPS.get(arrays.dtype(name, operands)))
        except AssertionError as error:
            return f"other than the baseline: {error}"
        return ""

    def _bound(self, index: int, part: int) -> Call:
        operands = self.parts[part]
        if index < len(self.own):
            return self._families[part].bind(operands, self.own[index], self._results[part])
        product = self._libraries[self.names[index]](operands.matrix, self._backend.threads)
        return lambda: product(operands)

    def _computed(self, index: int, operands: Operands) -> Any:
        """Run a candidate once."""
        if index >= len(self.own):
            return self._libraries[self.names[index]](operands.matrix, self._backend.threads)(operands)
        result = self._families[0].result(operands)
        self._families[0].bind(operands, self.own[index], result)()
        return result


def _fail(error: Exception) -> NoReturn:
    raise error


def gathered_pieces(nnz: int, width: int) -> Iterator[slice]:
    """Cut nonzeros into pieces so that three arrays (piece, width) take at most a gigabyte, or one nonzero each."""
    step = max(1, GATHERED_BYTES // (3 * 4 * width))
    return (slice(begin, begin + step) for begin in range(0, nnz, step))


def _scipy_spmm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by SciPy, which uses one thread."""
    csr = matrix.to_scipy()

    def product(operands: Operands) -> np.ndarray:
        csr.data = operands.matrix.values
        return csr @ operands.dense["B"]

    return product


LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({"spmm": MappingProxyType({"scipy": _scipy_spmm})})
"""Operation -> name -> library; those that are always installed on a processor."""


def shortlist(
    model: CsrCostModel, op: str, operands: Operands, configs: Sequence[Config], *, count: int,
    kind: Callable[[Config], str],
) -> list[Config]:
    """Choose the most promising configurations, best first, with at least one of each kind if `count` allows.

    Args:
        count: of configurations; if there are more kinds, each is of another kind.
        kind: of a configuration; the model cannot compare those of different kinds well enough to drop a kind.
    """
    ranked = [configs[index] for index in np.argsort(model.score(op, operands, configs), kind="stable")]
    chosen = ranked[:count]
    for missing in dict.fromkeys(map(kind, ranked)):
        held = Counter(map(kind, chosen))
        if missing not in held:
            last = max((index for index, config in enumerate(chosen) if held[kind(config)] > 1), default=None)
            if last is None:
                break
            del chosen[last]
            chosen.append(next(config for config in ranked if kind(config) == missing))
    return chosen


def sample_rows(pattern: Pattern, *, nonzeros: int, parts: int, seed: int) -> list[np.ndarray]:
    """Draw rows with about so many nonzeros, in parts that are samples themselves; all in one if there are no more.

    Rows are drawn in blocks of neighbours, so they share as much in the caches as before; all their columns are kept,
    and the dense operands they read are whole. Blocks are drawn from strata of equal size by nonzeros. The block with
    the most nonzeros is always drawn, so hubs are in the sample; blocks without nonzeros never are.

    Args:
        parts: at most; the blocks of every stratum are dealt to them in turn.

    Returns:
        Rows of each part, int64, ascending.

    Departure from AutoSAGE, which probes an induced subgraph: that thins every row by the sampling fraction.
    """
    if pattern.nnz <= nonzeros:
        return [np.arange(pattern.rows)]
    begins = np.arange(0, pattern.rows, BLOCK_ROWS)
    held = np.diff(pattern.indptr[np.append(begins, pattern.rows)])
    begins, held = begins[held > 0], held[held > 0]
    rng, chosen = np.random.default_rng(seed), []
    *lighter, heavy = np.array_split(np.argsort(held, kind="stable"), min(STRATA, begins.size))
    drawn = [*map(rng.permutation, lighter), np.append(heavy[-1:], rng.permutation(heavy[:-1]))]
    for stratum in drawn:
        wanted, got = nonzeros * held[stratum].sum() / pattern.nnz, 0
        for block in stratum:
            if got + held[block] / 2 > wanted and block != heavy[-1]:
                break
            chosen.append(int(block))
            got += int(held[block])
    dealt = np.arange(len(chosen)) % min(parts, len(chosen))
    order = np.argsort(chosen)
    return [np.concatenate([np.arange(begins[block], min(begins[block] + BLOCK_ROWS, pattern.rows))
                            for block in np.array(chosen)[order[dealt[order] == part]]])
            for part in range(min(parts, len(chosen)))]


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
        parts = sample_rows(pattern, nonzeros=max(self.policy.least_nonzeros, int(self.policy.share * pattern.nnz)),
                            parts=self.policy.parts, seed=0)
        if sum(rows.size for rows in parts) == pattern.rows:
            return [operands]
        return [self.backend.arrays.take_rows(operands, rows, self.op.name) for rows in parts]

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
