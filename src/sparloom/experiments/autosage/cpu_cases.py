"""Decide, time and explore one case of the CPU dispatch benchmark, each step in a process of its own.

`PolicyVariant` names another policy or another source of shortlists that the benchmark compares with the default.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from sparloom.baselines import GATHERING, SPARSE_BASELINES, gathered_bytes
from sparloom.errors import MissingArtifact, Unsupported
from sparloom.experiments.autosage.cases import (
    OPERATIONS,
    TRAINING,
    DispatchCase,
    ReferenceRows,
    bind_methods,
    check_own,
    decision_columns,
    user_call,
)
from sparloom.experiments.autosage.graph_training import sage_aggregations, sage_steps
from sparloom.experiments.harness import note_failure, peak_bytes, seconds_of, side_by_side, statistics_of, trim_memory
from sparloom.files import scratch_folder
from sparloom.fusion import pinned
from sparloom.jit import RESULT_POOL
from sparloom.measure import TimingProtocol
from sparloom.models import load_checkpoint, retain_memory
from sparloom.models.performance import load_performance
from sparloom.ops import Operands
from sparloom.platforms import CpuKernels, interleaved, reallocated
from sparloom.sparse import MatrixEntry, Pattern, SparseMatrix
from sparloom.tuning import PlanCache, machine_rates, put_rates
from sparloom.tuning.sparse import CandidateSource, CpuBackend, CsrPolicy, Library, Prepared, prepare

__all__ = ["DispatchBench", "PolicyVariant", "ready_variants"]

UNSEEN = "task.roles=[train,validation]"  # of fit_trees, whose models learn from all roles otherwise

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PolicyVariant:
    """Another way to decide.

    Args:
        policy: of the decision.
        shortlist, model: what shortlists are made by, as in `sparloom.tuning.sparse.Prepared`.
    """

    policy: CsrPolicy
    shortlist: str = "estimate"
    model: Sequence[str] | None = None

    def learned_from(self) -> frozenset[str]:
        """Name the matrices, or their families, that the model has learned from.

        Raises:
            MissingArtifact: a file is not there; names the command that makes it.
            SchemaError: a file holds something else.
        """
        source = CandidateSource.of(self.shortlist, self.model)
        if source.kind == "trees":
            return frozenset(name for folder in source.files for name in load_performance(folder).folds)
        notes = [load_checkpoint(path, kind="cognate").notes for path in source.files]
        return frozenset(name for each in notes for part in ("matrices", "anchors") for name in each.get(part, ()))


def ready_variants(ways: Mapping[str, PolicyVariant], entries: Sequence[MatrixEntry]) -> dict[str, PolicyVariant]:
    """Leave out ways whose model is not there, or has learned from what it is judged on; a warning says what to run.

    Args:
        entries: matrices that the ways are judged on.
    """
    ready = {}
    for name, way in ways.items():
        try:
            learned = way.learned_from()
        except MissingArtifact as missing:
            besides = f", for this comparison with {UNSEEN}" if way.shortlist == "trees" else ""
            logger.warning("the way %s is left out: %s%s", name, missing, besides)
            continue
        seen = [entry.name for entry in entries if {entry.name, entry.family} & learned]
        if seen:
            remedy = f"python run.py experiment=fit_trees {UNSEEN}" if way.shortlist == "trees" else (
                "choose another corpus.role")
            logger.warning("the way %s is left out: its model has learned from %d of %d matrices (%s, ...): %s", name,
                           len(seen), len(entries), seen[0], remedy)
            continue
        ready[name] = way
    return ready


SERIAL = ("scipy",)
FOLDER = "AUTOSAGE_CACHE_DIR"
AFTERWARDS = 9  # calls after a decision, which say what one takes from then on
PROGRAMS = 3  # that find a decision

Row = dict[str, Any]
_loaded: set[str] = set()


@dataclass(frozen=True)
class DispatchBench:
    """What all cases have in common.

    Args:
        timing: of the methods side by side.
        threads: of all of them.
        heads: of attention.
        policy: of decisions.
        libraries: baselines that decisions know.
        memory_bytes: peers that gather more are left out.
        ways: other ways to decide, by name.
        repeats: of a cold decision.
        plans: folder of decisions; another process finds them there.
        seed: of operands.
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

    def decide(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Make the first calls of a program, until it is decided; one row says what was, and what it took.

        Kernels and libraries have been compiled and loaded before, on a small matrix, and the rates of the machine are
        known. What an attempt before that was killed has kept is gone.
        """
        torch.set_num_threads(self.threads)
        self._load(case.op)
        kept = self._kept(case)
        shutil.rmtree(kept.folder, ignore_errors=True)
        return [self._until_decided(case.op, self._operands(case, matrix), kept, PolicyVariant(self.policy))]

    def score(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Check every method and time all side by side; a row for each. What was decided is looked up.

        Memory that is freed meanwhile is kept for what is allocated next, for all methods. Peers that are slow, see
        `side_by_side`, are timed twice, alone, and the faster run counts.

        Raises:
            NotDecided: no other process has decided the case before.
            AssertionError: one of our own methods computes something else than the oracle.
        """
        torch.set_num_threads(self.threads)
        retain_memory()
        with suppress(Unsupported):
            trim_memory()
        if case.op in TRAINING:
            return self._trained(case, matrix)
        op, operands = OPERATIONS[case.op](self.heads), reallocated(self._operands(case, matrix))
        ready = self._prepared(operands.matrix, cache=self._kept(case), policy=self.policy, replay_only=True)
        bound = bind_methods(ready, ready.plan(case.op, **operands.dense), op, operands)
        known = ReferenceRows(op, operands, CpuBackend(self.threads))
        check_own(bound, known)
        own, failed = {name: call.run for name, call in bound.items()}, {}
        peers = self._peers(case.op, operands, known, failed)
        with pinned(self.threads), torch.inference_mode():
            taken = side_by_side(own, peers, failed, self.timing, threads=self.threads, serial=SERIAL)
        work, calls = op.work(operands.matrix.pattern, case.width), {**own, **peers}
        return [{"method": name, **statistics_of(each), "flops": work.flops, "bytes": work.bytes,
                 **self._peak(case, calls[name])} for name, each in taken.items()] + _failures(failed)

    def _peers(
        self, op: str, operands: Operands, known: ReferenceRows, failed: dict[str, str],
    ) -> dict[str, Callable[[], Any]]:
        """Bind those that are here, compute what is wanted, and do not need too much memory."""
        peers = {}
        for name, bind in SPARSE_BASELINES[op].items():
            with note_failure(name, failed):
                if name in GATHERING and gathered_bytes(operands) > self.memory_bytes:
                    raise Unsupported(f"it makes {gathered_bytes(operands) / 2**30:.1f} GiB")
                call = bind(operands, self.threads)
                known.check(np.asarray(call()))
                peers[name] = call
        return peers

    def _trained(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time what is trained, in which kernels are decided and kept as in any program, but among those of this run.

        Raises:
            AssertionError: ours computes something else.
        """
        bind = sage_aggregations if case.op == "sage_training" else sage_steps
        with _layers_keep_in(self.plans):
            try:
                steps = bind(matrix.pattern, case.width, seed=self.seed)
            except Unsupported as error:
                return _failures({"pyg": f"{type(error).__name__}: {error}"})
            with pinned(self.threads):
                taken = side_by_side(steps.own, steps.peers, steps.refused, self.timing, threads=self.threads)
        return [{"method": name, **statistics_of(each)} for name, each in taken.items()] + _failures(steps.refused)

    def explore(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time every candidate and every baseline of a decision, and decide anew in every way, several times.

        The rows of candidates have `seconds` for each repetition, those of decisions a way and a repeat.
        """
        torch.set_num_threads(self.threads)
        self._load(case.op)
        op, operands = OPERATIONS[case.op](self.heads), reallocated(self._operands(case, matrix))
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
        """Decide on a small matrix, once in a process, which calls all there is; nothing of it is kept."""
        if op in _loaded:
            return
        _loaded.add(op)
        pattern = Pattern((40, 40), 8 * np.arange(41), np.tile(np.arange(0, 40, 5), 40))
        operands = OPERATIONS[op](self.heads).operands(
            SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), 8 * self.heads, self.seed)
        policy = replace(self.policy, calibrate="full", effort=replace(self.policy.effort, seconds=0.05))
        self._until_decided(op, operands, PlanCache(None, keep_busy=True), PolicyVariant(policy))

    def _cold(self, case: DispatchCase, operands: Operands, way: PolicyVariant) -> Row:
        """Make the first calls with nothing known but the rates of the machine."""
        with scratch_folder("plans") as folder:
            return self._until_decided(case.op, operands, PlanCache(folder, keep_busy=True), way)

    def _until_decided(self, op: str, operands: Operands, cache: PlanCache, way: PolicyVariant) -> Row:
        """Make a matrix ready and call an operation until it is decided how it runs, then some times more.

        All is timed from reading the arrays of A on: the hash of the pattern, calls of candidates, what is measured
        beside them, keeping and logging the decision, binding what was chosen. Then programs that find the decision
        make as many calls.
        """
        if cache.folder is not None:
            rates = machine_rates(PlanCache(self.plans, keep_busy=True), threads=self.threads)
            put_rates(cache, rates, threads=self.threads)
        given, out = operands.matrix.to_scipy(), CpuKernels(self.threads, operands.width).family(
            OPERATIONS[op](self.heads)).result(operands)
        out.fill(0)

        def program(calls: int | None = None) -> tuple[float, int, Prepared]:
            start, made = time.perf_counter(), 0
            ready = prepare(given, threads=self.threads, libraries=self.libraries, cache=cache, policy=way.policy,
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

    def _kept(self, case: DispatchCase) -> PlanCache:
        """Where the decision of a case is kept, with nothing else."""
        return PlanCache(self.plans / case.key, keep_busy=True)

    def _prepared(self, matrix: SparseMatrix, **options: Any) -> Prepared:
        return Prepared(matrix, threads=self.threads, libraries=self.libraries, **options)

    def _operands(self, case: DispatchCase, matrix: SparseMatrix) -> Operands:
        """Draw operands; SDDMM has ones in A, which peers do not multiply by."""
        if case.op == "sddmm":
            matrix = SparseMatrix(matrix.pattern, np.ones(matrix.pattern.nnz, np.float32))
        return OPERATIONS[case.op](self.heads).operands(matrix, case.width, self.seed)

    def _peak(self, case: DispatchCase, call: Callable[[], Any]) -> Row:
        """Memory that attention takes, its result included where the call makes it."""
        if case.op != "attention":
            return {}
        try:
            return {"peak_bytes": peak_bytes(call, RESULT_POOL.clear)}
        except Unsupported:
            return {}


@contextmanager
def _layers_keep_in(folder: Path) -> Iterator[None]:
    """Let layers, which ask the environment, keep their decisions in a folder."""
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER]


def _failures(failed: Mapping[str, str]) -> list[Row]:
    return [{"method": name, "failure": reason} for name, reason in failed.items()]
