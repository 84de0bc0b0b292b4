"""Decide, time and explore one case of a bench of input-aware operations: steps for processes of their own."""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparloom.dispatch import PlanCache
from sparloom.dispatch.csr import CsrPolicy, Library, Prepared
from sparloom.errors import Unsupported
from sparloom.fusion import pinned
from sparloom.jit import RESULTS
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Operands, assert_rows_close
from sparloom.platforms import CpuKernels, interleaved, reallocated
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tasks.decision_way import DecisionWay
from sparloom.tasks.dispatch_calls import OPS, own_calls, told
from sparloom.tasks.dispatch_cases import TRAINING, DispatchCase
from sparloom.tasks.peak_memory import peak_bytes
from sparloom.tasks.sage_training import sage_aggregations, sage_steps
from sparloom.tasks.sparse_peers import GATHERING, SPARSE_PEERS, gathered_bytes
from sparloom.tasks.timed_cases import statistics_of

__all__ = ["DispatchBench"]

SERIAL = ("scipy",)

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
        cache: of decisions; another process finds them there.
        seed: of operands.
    """

    timing: TimingProtocol
    threads: int
    heads: int
    policy: CsrPolicy
    libraries: Mapping[str, Mapping[str, Library]]
    memory_bytes: float
    ways: Mapping[str, DecisionWay]
    repeats: int
    cache: PlanCache
    seed: int

    def decide(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Decide; one row says what for and what it took, but for what compiles and loads kernels and libraries."""
        torch.set_num_threads(self.threads)
        self._load(case.op)
        operands = self._operands(case, matrix)
        self.cache.rates(self.threads)
        plan = self._prepared(operands.matrix, cache=self.cache, policy=self.policy).plan(case.op, **operands.dense)
        return [told(plan)]

    def score(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Check every method and time all side by side; a row for each. What was decided is looked up.

        Baselines that are slow, see `TimingProtocol`, are timed twice, alone, and the faster run counts.

        Raises:
            NotDecided: no other process has decided the case before.
        """
        torch.set_num_threads(self.threads)
        if case.op in TRAINING:
            return self._trained(case, matrix)
        op, operands = OPS[case.op](self.heads), reallocated(self._operands(case, matrix))
        ready = self._prepared(operands.matrix, cache=self.cache, policy=self.policy, replay_only=True)
        plan = ready.plan(case.op, **operands.dense)
        calls = own_calls(case.op, ready, plan, operands, CpuKernels(self.threads, case.width).family(op))
        expected, failed, once = np.array(calls["sparloom"]()), [], {}
        limit = self.timing.slow_factor * _seconds(calls["sparloom"])
        for name, bind in SPARSE_PEERS[case.op].items():
            try:
                if name in GATHERING and gathered_bytes(operands) > self.memory_bytes:
                    raise Unsupported(f"it makes {gathered_bytes(operands) / 2**30:.1f} GiB")
                call = bind(operands, self.threads)
                assert_rows_close(np.asarray(call()), expected, op, operands)
                spent = _seconds(call)
                if spent > limit and (spent := min(spent, _seconds(call))) > limit:
                    once[name] = Measurement((spent,), "wall")
                calls[name] = call
            except (Unsupported, AssertionError) as error:
                failed.append({"method": name, "failure": f"{type(error).__name__}: {error}"})
        with pinned(self.threads), torch.inference_mode():
            taken = interleaved({name: call for name, call in calls.items() if name not in once}, self.timing,
                                threads=self.threads, serial=SERIAL)
        work = op.work(operands.matrix.pattern, case.width)
        return [{"method": name, **statistics_of(each), "flops": work.flops, "bytes": work.bytes,
                 **self._peak(case, calls[name])} for name, each in {**taken, **once}.items()] + failed

    def _trained(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time what is trained, in which kernels are decided and kept as in any program."""
        bind = sage_aggregations if case.op == "sage_training" else sage_steps
        try:
            steps = bind(matrix.pattern, case.width, seed=self.seed)
        except (Unsupported, AssertionError) as error:
            return [{"method": "pyg", "failure": f"{type(error).__name__}: {error}"}]
        with pinned(self.threads):
            taken = interleaved(steps.bound, self.timing, threads=self.threads)
        return [{"method": name, **statistics_of(each)} for name, each in taken.items()] + [
            {"method": name, "failure": reason} for name, reason in steps.refused.items()]

    def explore(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time every candidate and every baseline of a decision, and decide anew in every way, several times.

        The rows of candidates have `seconds` for each repetition, those of decisions a way and a repeat.
        """
        torch.set_num_threads(self.threads)
        op, operands = OPS[case.op](self.heads), reallocated(self._operands(case, matrix))
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
                     for name, way in {"default": DecisionWay(self.policy), **self.ways}.items()
                     if repeat == 0 or name == "default"]
        return rows

    def _load(self, op: str) -> None:
        """Decide on a small matrix, once in a process, which calls all there is; nothing of it is kept."""
        if op in _loaded:
            return
        _loaded.add(op)
        pattern = Pattern((40, 40), 8 * np.arange(41), np.tile(np.arange(0, 40, 5), 40))
        operands = OPS[op](self.heads).operands(
            SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), 8 * self.heads, self.seed)
        policy = replace(self.policy, calibrate="full", effort=replace(self.policy.effort, seconds=0.05))
        self._prepared(operands.matrix, cache=PlanCache(None), policy=policy).plan(op, **operands.dense)

    def _cold(self, case: DispatchCase, operands: Operands, way: DecisionWay) -> Row:
        """Decide with nothing known but the rates of the machine."""
        folder = Path(tempfile.mkdtemp(prefix="sparloom-plans-"))
        try:
            cache = PlanCache(folder)
            cache.keep_rates(self.threads, self.cache.rates(self.threads))
            return told(self._prepared(operands.matrix, cache=cache, policy=way.policy, shortlist=way.shortlist,
                                       model=way.model).plan(case.op, **operands.dense))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _prepared(self, matrix: SparseMatrix, **options: Any) -> Prepared:
        return Prepared(matrix, threads=self.threads, libraries=self.libraries, **options)

    def _operands(self, case: DispatchCase, matrix: SparseMatrix) -> Operands:
        """Draw operands; SDDMM has ones in A, which peers do not multiply by."""
        if case.op == "sddmm":
            matrix = SparseMatrix(matrix.pattern, np.ones(matrix.pattern.nnz, np.float32))
        return OPS[case.op](self.heads).operands(matrix, case.width, self.seed)

    def _peak(self, case: DispatchCase, call: Callable[[], Any]) -> Row:
        """Memory that attention takes, its result included where the call makes it."""
        if case.op != "attention":
            return {}
        try:
            return {"peak_bytes": peak_bytes(call, RESULTS.clear)}
        except Unsupported:
            return {}


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
