"""Decide, time and explore one case of the CPU dispatch benchmark, each step in a process of its own.

`PolicyVariant` names another policy or another source of shortlists that the benchmark compares with the default.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike

from sparloom.baselines import GATHERING, SPARSE_BASELINES, gathered_bytes
from sparloom.errors import MissingArtifact, Unsupported
from sparloom.experiments.autosage.cases import (
    LAYERS,
    OPERATIONS,
    TRAINING,
    TYPED,
    DispatchCase,
    ReferenceRows,
    bind_methods,
    check_own,
    decision_columns,
    user_call,
)
from sparloom.experiments.autosage.graph_training import layer_steps, sage_aggregations
from sparloom.experiments.harness import note_failure, peak_bytes, seconds_of, side_by_side, statistics_of, trim_memory
from sparloom.files import scratch_folder, write_json
from sparloom.fusion import pinned
from sparloom.jit import RESULT_POOL
from sparloom.measure import TimingProtocol
from sparloom.models import load_checkpoint, retain_memory
from sparloom.models.performance import load_performance
from sparloom.ops import Op, Operands, SpMM
from sparloom.platforms import CpuKernels, PatternReuse, Roof, bound, interleaved, measure_roof, reallocated
from sparloom.platforms.cuda import as_float32
from sparloom.sparse import BFLOAT16, MatrixEntry, Pattern, SparseMatrix
from sparloom.tuning import PlanCache, machine_rates, put_rates
from sparloom.tuning.sparse import CandidateSource, CpuBackend, CsrPlan, CsrPolicy, Library, Prepared, prepare
from sparloom.tuning.sparse.inputs import rounded

ROOF_ROUNDS = 20  # half a second
UNSEEN = "task.roles=[train,validation]"  # override of fit_trees, whose models learn from all roles by default

logger = logging.getLogger(__name__)
SERIAL = ("scipy",)
BFLOAT16_EPS = 2.0**-7  # relative, between neighbouring numbers
FOLDER = "AUTOSAGE_CACHE_DIR"
AFTERWARDS = 9  # timed calls after a decision
PROGRAMS = 3  # timed programs that find a decision
Row = dict[str, Any]
_loaded: set[str] = set()


@dataclass(frozen=True)
class PolicyVariant:
    """Another policy or source of shortlists.

    Args:
        shortlist, model: source of shortlists, see `sparloom.tuning.sparse.Prepared`.
    """

    policy: CsrPolicy
    shortlist: str = "estimate"
    model: Sequence[str] | None = None

    def learned_from(self) -> frozenset[str]:
        """Return the matrices, or their families, that the model has learned from.

        Raises:
            MissingArtifact: a file is missing; names the command that makes it.
            SchemaError: a file is not a model.
        """
        source = CandidateSource.of(self.shortlist, self.model)
        if source.kind == "trees":
            return frozenset(name for folder in source.files for name in load_performance(folder).folds)
        notes = [load_checkpoint(path, kind="cognate").notes for path in source.files]
        return frozenset(name for each in notes for part in ("matrices", "anchors") for name in each.get(part, ()))


def ready_variants(ways: Mapping[str, PolicyVariant], entries: Sequence[MatrixEntry]) -> dict[str, PolicyVariant]:
    """Drop variants whose model is missing or has learned from a judged matrix; a warning names the remedy."""
    ready = {}
    for name, way in ways.items():
        try:
            learned = way.learned_from()
        except MissingArtifact as missing:
            besides = f", for this comparison with {UNSEEN}" if way.shortlist == "trees" else ""
            logger.warning("the way %s is left out: %s%s", name, missing, besides)
            continue
        seen = seen_matrices(learned, entries)
        if seen:
            remedy = f"python run.py experiment=fit_trees {UNSEEN}" if way.shortlist == "trees" else (
                "choose another corpus.role")
            logger.warning("the way %s is left out: its model has learned from %d of %d matrices (%s, ...): %s", name,
                           len(seen), len(entries), seen[0], remedy)
            continue
        ready[name] = way
    return ready


def seen_matrices(learned: frozenset[str], entries: Sequence[MatrixEntry]) -> list[str]:
    """List those of some matrices that a model has learned from, themselves or their family."""
    return [entry.name for entry in entries if {entry.name, entry.family} & learned]


def stored_roof(path: Path, threads: int) -> Roof:
    """Read the peak rates of this machine that a run has stored, or measure and store them."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(measure_roof(threads, rounds=ROOF_ROUNDS)))
    return Roof.from_json(json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class DispatchBench:
    """Settings that all cases share.

    Args:
        timing: protocol for methods in turn.
        memory_bytes: baselines that gather more are left out.
        ways: name -> other policy or source of shortlists.
        repeats: repetitions of a cold decision.
        plans: folder of decisions, in which another process finds them.
        roof: rates by which cases are bounded; None: they are not.
    """

    timing: TimingProtocol
    threads: int
    heads: int
    policy: CsrPolicy
    libraries: Mapping[str, Mapping[str, Library]]
    memory_bytes: float
    ways: Mapping[str, PolicyVariant]
    repeats: int
    plans: Path
    seed: int
    roof: Roof | None = None

    def decide(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Make the first calls of a program until the kernel is decided; return one row with choice and cost.

        Kernels and libraries are compiled and loaded before, on a small matrix, and the rates of the machine are known.
        Decisions of an interrupted attempt are deleted.
        """
        torch.set_num_threads(self.threads)
        self._load(case.op)
        cache = self._plan_cache(case)
        shutil.rmtree(cache.folder, ignore_errors=True)
        operands = reallocated(self.operands(case, matrix))
        return [self._until_decided(case.op, operands, cache, PolicyVariant(self.policy))]

    def decided(self, case: DispatchCase, matrix: SparseMatrix) -> CsrPlan:
        """Look up what `decide` has decided."""
        operands = self.operands(case, matrix)
        ready = self._prepared(operands.matrix, cache=self._plan_cache(case), policy=self.policy, replay_only=True)
        return ready.plan(case.op, **operands.dense)

    def score(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Check every method and time all in turn; return a row for each. Decisions are looked up.

        Freed memory stays available to the process for all methods. Slow baselines, see `side_by_side`, are timed twice
        by themselves, and the faster run counts.

        Raises:
            NotDecided: the case was not decided before.
        """
        torch.set_num_threads(self.threads)
        retain_memory()
        with suppress(Unsupported):
            trim_memory()
        if case.op in TRAINING:
            return self._trained(case, matrix)
        if case.op in TYPED:
            return self._typed(case, matrix)
        op, operands = OPERATIONS[case.op](self.heads), reallocated(self.operands(case, matrix))
        ready = self._prepared(operands.matrix, cache=self._plan_cache(case), policy=self.policy, replay_only=True)
        bound = bind_methods(ready, ready.plan(case.op, **operands.dense), op, operands)
        known = ReferenceRows(op, operands, CpuBackend(self.threads))
        check_own(bound, known)
        own, failed = {name: call.run for name, call in bound.items()}, {}
        baselines = self._baselines(case.op, operands, known, failed)
        with pinned(self.threads), torch.inference_mode():
            taken = side_by_side(own, baselines, failed, self.timing, threads=self.threads, serial=SERIAL)
        work, calls = op.work(operands.matrix.pattern, case.width), {**own, **baselines}
        about = {"flops": work.flops, "bytes": work.bytes, **self._bounded(op, matrix.pattern, case.width)}
        return [{"method": name, **statistics_of(each), **about, **self._peak(case, calls[name])}
                for name, each in taken.items()] + _failures(failed)

    def _bounded(self, op: Op, pattern: Pattern, width: int, dtype: DTypeLike = np.float32) -> Row:
        """Return the least seconds of a case."""
        if self.roof is None:
            return {}
        least = bound(op, _reuse(pattern, self.threads), width, roof=self.roof, dtype=dtype)
        return {"bound_seconds": least.seconds, "compulsory_seconds": least.compulsory_seconds,
                "bound_by": least.limit}

    def _baselines(
        self, op: str, operands: Operands, known: ReferenceRows, failed: dict[str, str],
    ) -> dict[str, Callable[[], Any]]:
        """Bind the baselines that are installed, correct, and fit the memory."""
        baselines = {}
        for name, bind in SPARSE_BASELINES[op].items():
            with note_failure(name, failed):
                if name in GATHERING and gathered_bytes(operands) > self.memory_bytes:
                    raise Unsupported(f"it makes {gathered_bytes(operands) / 2**30:.1f} GiB")
                call = bind(operands, self.threads)
                known.check(np.asarray(call()))
                baselines[name] = call
        return baselines

    def _trained(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time training; kernels are decided and cached as in any program, but in the folder of this run."""
        with layers_keep_in(self.plans):
            try:
                if case.op == "sage_training":
                    steps = sage_aggregations(matrix.pattern, case.width, seed=self.seed)
                else:
                    steps = layer_steps(LAYERS[case.op], matrix.pattern, case.width, seed=self.seed)
            except Unsupported as error:
                return _failures({"pyg": f"{type(error).__name__}: {error}"})
            with pinned(self.threads):
                taken = side_by_side(steps.own, steps.baselines, steps.refused, self.timing, threads=self.threads)
            calls = {**steps.own, **steps.baselines}
            rows = [{"method": name, **statistics_of(each), **self._peak(case, calls[name])}
                    for name, each in taken.items()]
        return rows + _failures(steps.refused)

    def _typed(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time a product of other numbers than float32: doubles beside libraries, bfloat16 beside our own float32."""
        op, single = OPERATIONS[case.op](self.heads), self.operands(case, matrix)
        failed: dict[str, str] = {}
        if TYPED[case.op] == "float64":
            operands, eps = reallocated(single.astype(np.float64)), None
            known = ReferenceRows(op, operands, CpuBackend(self.threads))
            baselines = self._baselines("spmm", operands, known, failed)
        else:
            values, dense = (rounded(each, BFLOAT16) for each in (matrix.values, single.dense["B"]))
            operands = reallocated(Operands(SparseMatrix(matrix.pattern, values, BFLOAT16), {"B": dense}))
            known, eps = ReferenceRows(op, single, CpuBackend(self.threads)), BFLOAT16_EPS
            baselines = {"float32": self._products(reallocated(single))["sparloom"]}
        own = self._products(operands)
        known.check(as_float32(own["sparloom"]()), eps=eps)
        with pinned(self.threads), torch.inference_mode():
            taken = side_by_side(own, baselines, failed, self.timing, threads=self.threads, serial=SERIAL)
        about = self._bounded(op, matrix.pattern, case.width, operands.matrix.dtype)
        return [{"method": name, **statistics_of(each), **about} for name, each in taken.items()] + _failures(failed)

    def _products(self, operands: Operands) -> dict[str, Callable[[], np.ndarray]]:
        """Bind our product once its kernel is decided, into an array and into a new one."""
        ready = self._prepared(operands.matrix, cache=PlanCache(None), policy=self.policy)
        call = user_call(ready, "spmm", operands.dense)
        into = partial(call, out=CpuKernels(self.threads, operands.width).family(SpMM()).result(operands))
        while not ready.decided("spmm", **operands.dense):
            into()
        return {"sparloom": into, "sparloom_new": call}

    def explore(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time every candidate and every baseline of a decision, and repeat the decision by every policy variant.

        Rows of candidates have `seconds` of each repetition, rows of decisions have a way and a repeat.
        """
        torch.set_num_threads(self.threads)
        self._load(case.op)
        op, operands = OPERATIONS[case.op](self.heads), reallocated(self.operands(case, matrix))
        kernels = CpuKernels(self.threads, case.width)
        family = kernels.family(op)
        result = family.result(operands)
        calls: dict[str, Callable[[], Any]] = {
            config.key: family.bind(operands, config, result) for config in kernels.space(op)}
        for name, library in self.libraries.get(case.op, {}).items():
            product = library(operands.matrix, self.threads)
            calls[name] = lambda product=product: product(operands)
        with pinned(self.threads), torch.inference_mode():
            taken = interleaved(calls, self.timing, threads=self.threads, serial=SERIAL)
        rows: list[Row] = [{"method": name, **statistics_of(each)} for name, each in taken.items()]
        for repeat in range(self.repeats):
            rows += [{"way": name, "repeat": repeat, **self._cold(case, operands, way)}
                     for name, way in {"default": PolicyVariant(self.policy), **self.ways}.items()
                     if repeat == 0 or name == "default"]
        return rows

    def _load(self, op: str) -> None:
        """Load all kernels and libraries by a decision on a small matrix, once in a process, without caching it."""
        if op in _loaded:
            return
        _loaded.add(op)
        pattern = Pattern((40, 40), 8 * np.arange(41), np.tile(np.arange(0, 40, 5), 40))
        operands = OPERATIONS[op](self.heads).operands(
            SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), 8 * self.heads, self.seed)
        policy = replace(self.policy, calibrate="full", effort=replace(self.policy.effort, seconds=0.05))
        self._until_decided(op, operands, PlanCache(None), PolicyVariant(policy))

    def _cold(self, case: DispatchCase, operands: Operands, way: PolicyVariant) -> Row:
        """Make the first calls with an empty cache, except for the rates of the machine."""
        with scratch_folder("plans") as folder:
            return self._until_decided(case.op, operands, PlanCache(folder), way)

    def _until_decided(self, op: str, operands: Operands, cache: PlanCache, way: PolicyVariant) -> Row:
        """Prepare a matrix and call an operation until its kernel is decided, then a few times more.

        The time starts with reading the arrays of A: hashing the pattern, calls of candidates and further measurements,
        caching and logging the decision, binding the choice. Then programs that find the decision make as many calls.
        """
        if cache.folder is not None:
            rates = machine_rates(PlanCache(self.plans), threads=self.threads, kernels="sparse")
            put_rates(cache, rates, threads=self.threads, kernels="sparse")
        adjacency, out = operands.matrix.to_scipy(), CpuKernels(self.threads, operands.width).family(
            OPERATIONS[op](self.heads)).result(operands)
        out.fill(0)

        def program(calls: int | None = None) -> tuple[float, int, Prepared]:
            start, made = time.perf_counter(), 0
            ready = prepare(adjacency, threads=self.threads, libraries=self.libraries, cache=cache, policy=way.policy,
                            shortlist=way.shortlist, model=way.model)
            call = user_call(ready, op, operands.dense)
            while made < calls if calls else not made or not ready.decided(op, **operands.dense):
                call(out=out)
                made += 1
            return time.perf_counter() - start, made, ready

        seconds, calls, ready = program()
        call, known = user_call(ready, op, operands.dense), seconds
        usual = median(seconds_of(lambda: call(out=out)) for _ in range(AFTERWARDS))
        if cache.folder is not None:
            known = median(program(calls)[0] for _ in range(PROGRAMS))
        return {**decision_columns(ready.plan(op, **operands.dense)), "calls": calls, "call_seconds": usual,
                "beyond_seconds": seconds - known, "start_seconds": seconds - calls * usual}

    def _plan_cache(self, case: DispatchCase) -> PlanCache:
        """Return the cache that holds only the decision of a case."""
        return PlanCache(self.plans / case.key)

    def _prepared(self, matrix: SparseMatrix, **options: Any) -> Prepared:
        return Prepared(matrix, threads=self.threads, libraries=self.libraries, **options)

    def operands(self, case: DispatchCase, matrix: SparseMatrix) -> Operands:
        """Draw operands; A has ones for SDDMM, since baselines do not multiply by its values."""
        if case.op == "sddmm":
            matrix = SparseMatrix(matrix.pattern, np.ones(matrix.pattern.nnz, np.float32))
        return OPERATIONS[case.op](self.heads).operands(matrix, case.width, self.seed)

    def _peak(self, case: DispatchCase, call: Callable[[], Any]) -> Row:
        """Return the peak memory of attention and of training steps, including a result that is allocated."""
        if case.op not in ("attention", *LAYERS):
            return {}
        try:
            return {"peak_bytes": peak_bytes(call, RESULT_POOL.clear)}
        except Unsupported:
            return {}


@lru_cache(maxsize=1)
def _reuse(pattern: Pattern, threads: int) -> PatternReuse:
    """Count the reuse distances of a pattern once for all its cases."""
    return PatternReuse.of(pattern, threads)


@contextmanager
def layers_keep_in(folder: Path) -> Iterator[None]:
    """Make layers, which read the environment, cache their decisions in a folder."""
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER]


def _failures(failed: Mapping[str, str]) -> list[Row]:
    return [{"method": name, "failure": reason} for name, reason in failed.items()]
