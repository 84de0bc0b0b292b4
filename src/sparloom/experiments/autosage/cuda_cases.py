"""Decide and time one case of the GPU dispatch benchmark, beside cuSPARSE and PyTorch.

docs/gpu_status.md says what has run on a GPU.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from sparloom.baselines import gathered_attention, gathered_bytes, sampled_attention
from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.experiments.autosage.cases import (
    LAYERS,
    OPERATIONS,
    TRAINING,
    DispatchCase,
    ReferenceRows,
    decision_columns,
    user_call,
)
from sparloom.experiments.autosage.graph_training import layer_steps, sage_aggregations
from sparloom.experiments.harness import statistics_of
from sparloom.measure import TimingProtocol
from sparloom.nn import CUDA_SPARSE_LIBRARIES, device_csr
from sparloom.ops import Op, Operands
from sparloom.platforms import DeviceKernels, interleaved_on_device
from sparloom.sparse import SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CsrPlan, CsrPolicy, CudaBackend, Library, Prepared

Bind = Callable[[Operands], Callable[[], Any]]
CUDA_GATHERING = ("torch_gather", "gathered")
"""Baselines that allocate two arrays (nnz, width)."""

VECTORS = (1, 4)  # values per load of the chosen kernel
SERIES, CALLS = 5, 20  # series of launches, and launches of a series
SHORT = 1e-3  # seconds; launch times are measured for shorter runs
REFUSALS = (Unsupported, AssertionError, MemoryError, RuntimeError)  # raised by other libraries
Row = dict[str, Any]
Call = Callable[[], Any]


def _library(operands: Operands, *, library: Library) -> Callable[[], Any]:
    """Bind a library that decisions compare with."""
    product = library(operands.matrix, 0)
    return lambda: product(operands)


def _composed_sampled(operands: Operands) -> Callable[[], torch.Tensor]:
    """Bind attention, one head after the other."""
    return sampled_attention(device_csr(operands.matrix), _rows(operands), _tensors(operands))


def _composed_gathered(operands: Operands) -> Callable[[], torch.Tensor]:
    """Bind attention of all heads at once."""
    columns = torch.from_dlpack(operands.matrix.placed.indices).long()
    return gathered_attention(_rows(operands), columns, _tensors(operands))


def _rows(operands: Operands) -> torch.Tensor:
    matrix = operands.matrix
    return torch.from_dlpack(matrix.gpu.upload(matrix.pattern.row_ids())).long()


def _tensors(operands: Operands) -> dict[str, torch.Tensor]:
    return {name: torch.from_dlpack(array) for name, array in operands.dense.items()}


CUDA_BASELINES: Mapping[str, Mapping[str, Bind]] = MappingProxyType({
    "spmm": {name: partial(_library, library=library) for name, library in CUDA_SPARSE_LIBRARIES["spmm"].items()},
    "sddmm": {name: partial(_library, library=library) for name, library in CUDA_SPARSE_LIBRARIES["sddmm"].items()},
    "attention": {"composed": _composed_sampled, "gathered": _composed_gathered},
})
"""Operation -> name -> function that binds it to operands on a device."""


@dataclass(frozen=True)
class CudaDispatchBench:
    """Settings that all cases share.

    Args:
        device: device of torch's tensors.
        timing: protocol for methods in turn.
        policy: policy of decisions; None: the default of the backend.
        memory_bytes: baselines that gather more are left out.
    """

    where: CudaBackend
    device: torch.device
    timing: TimingProtocol
    heads: int
    policy: CsrPolicy | None
    memory_bytes: float
    cache: PlanCache
    seed: int

    def rows(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Decide twice, then check every method and time all in turn; return a row for each.

        Rows of decisions have a `way`: "first", whose plan runs, compiles kernels; the second, "", finds them compiled.
        """
        if case.op in TRAINING:
            return self._trained(case, matrix)
        op = OPERATIONS[case.op](self.heads)
        drawn = op.operands(matrix, case.width, self.seed)
        operands = Operands(self.where.matrix(matrix), {
            name: self.where.arrays.to_device(array) for name, array in drawn.dense.items()})
        plans = {way: self._prepared(operands, cache).plan(case.op, **operands.dense)
                 for way, cache in (("first", self.cache), ("", PlanCache(None)))}
        decided = [{"way": way, "own": not plan.choice.library, **decision_columns(plan)}
                   for way, plan in plans.items()]
        return decided + self._timed(case, op, operands)

    def _timed(self, case: DispatchCase, op: Op, operands: Operands) -> list[Row]:
        ready = self._prepared(operands, self.cache, replay_only=True)
        plan, family = ready.plan(case.op, **operands.dense), self.where.kernels(op, case.width)
        calls, known = _own_calls(case.op, ready, plan, operands, family), ReferenceRows(op, operands, self.where)
        for name in ("sparloom", "sparloom_new"):
            known.check(calls[name]())
        launches = {name: calls[name] for name in ("sparloom", "kernel") if name in calls}
        for name, call, result in self._vectors(plan, op, operands, family):
            result.fill(np.nan)
            call()
            known.check(result)
            calls[name] = call
        failed = []
        for name, bind in CUDA_BASELINES[case.op].items():
            try:
                if name in CUDA_GATHERING and gathered_bytes(operands) > self.memory_bytes:
                    raise Unsupported(f"it makes {gathered_bytes(operands) / 2**30:.1f} GiB")
                call = bind(operands)
                with torch.inference_mode():
                    known.check(call())
                calls[name] = call
            except REFUSALS as error:
                failed.append(_refused(name, error))
        with torch.inference_mode():
            taken = interleaved_on_device(calls, self.timing, self.where.gpu.repeat)
        work = op.work(operands.matrix.pattern, case.width)
        rows = [{"method": name, **statistics_of(each), "flops": work.flops, "bytes": work.bytes}
                for name, each in taken.items()]
        for row in rows:
            if row["method"] in launches and row["median"] <= SHORT:
                row["launch_seconds"] = self._launch_seconds(launches[row["method"]])
        return rows + failed

    def _trained(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time neighbour means or whole training steps; kernels are decided and cached as in any program."""
        if 8 * matrix.pattern.nnz * case.width > self.memory_bytes:
            return [_refused("pyg", Unsupported("PyTorch Geometric gathers more than the memory holds"))]
        try:
            bind = sage_aggregations if case.op == "sage_training" else partial(layer_steps, LAYERS[case.op])
            steps = bind(matrix.pattern, case.width, seed=self.seed, device=self.device)
        except REFUSALS as error:
            return [_refused("pyg", error)]
        taken = interleaved_on_device({**steps.own, **steps.baselines}, self.timing, self.where.gpu.repeat)
        return [{"method": name, **statistics_of(each)} for name, each in taken.items()] + [
            {"method": name, "failure": reason} for name, reason in steps.refused.items()]

    def _vectors(
        self, plan: CsrPlan, op: Op, operands: Operands, family: DeviceKernels,
    ) -> Iterator[tuple[str, Call, Any]]:
        """Bind the chosen kernel with loads of one and of four values, and their results: "vec1", "vec4"."""
        if plan.choice.library:
            return
        result = family.result(operands)
        for vector in VECTORS:
            config = plan.config.replace(vector=vector)
            try:
                self.where.space(op, operands.width).validate(config)
                yield f"vec{vector}", family.bind(operands, config, result), result
            except (IllegalSchedule, Unsupported):
                continue

    def _launch_seconds(self, call: Call) -> float:
        """Return the wall seconds of a launch: mean of the fastest series, each on an idle device."""
        wait, means = self.where.gpu.repeat(call), []
        for _ in range(SERIES):
            wait(0.0)
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            means.append((time.perf_counter() - start) / CALLS)
        return min(means)

    def _prepared(self, operands: Operands, cache: PlanCache, *, replay_only: bool = False) -> Prepared:
        return Prepared(operands.matrix, where=self.where, cache=cache, policy=self.policy, replay_only=replay_only)


def _own_calls(
    op: str, ready: Prepared, plan: CsrPlan, operands: Operands, family: DeviceKernels,
) -> dict[str, Call]:
    """Bind the operation as users call it, with and without an output array, and the kernel that it runs."""
    call, result = user_call(ready, op, operands.dense), family.result(operands)
    calls = {"sparloom": partial(call, out=result), "sparloom_new": call}
    if plan.choice.config:
        calls["kernel"] = family.bind(operands, plan.config, result)
    return calls


def _refused(name: str, error: Exception) -> Row:
    return {"method": name, "failure": f"{type(error).__name__}: {error}"}
