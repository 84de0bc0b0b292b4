"""Time one case of the CPU dispatch benchmark beside libraries, or all candidates of its choices.

SpMM, SDDMM and attention run as plain calls, by a prepared and by a tuned matrix. Other products are bound by
call_cases, training by graph_training.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparloom
from sparloom.baselines import GATHERING, SPARSE_BASELINES, gathered_bytes
from sparloom.errors import Unsupported
from sparloom.experiments.autosage.call_cases import CALLS
from sparloom.experiments.autosage.cases import (
    GRADIENTS,
    LAYERS,
    OPERATIONS,
    TRAINING,
    TYPED,
    BoundMethod,
    DispatchCase,
    ReferenceRows,
    check_own,
    decision_columns,
    user_call,
)
from sparloom.experiments.autosage.graph_training import Steps, layer_steps, sage_aggregations
from sparloom.experiments.harness import note_failure, peak_bytes, side_by_side, statistics_of, trim_memory
from sparloom.files import write_json
from sparloom.fusion import pinned
from sparloom.measure import Caches, TimingProtocol
from sparloom.models import retain_memory
from sparloom.nn import SPARSE_LIBRARIES
from sparloom.ops import Op, Operands
from sparloom.platforms import CpuKernels, PatternReuse, Roof, bound, interleaved, measure_roof, reallocated
from sparloom.platforms.cpu_kernels import native_core
from sparloom.platforms.cuda import as_float32
from sparloom.space import Config
from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CpuBackend, Prepared
from sparloom.tuning.sparse.choice import choose
from sparloom.tuning.sparse.inputs import rounded

ROOF_ROUNDS = 20  # half a second
SERIAL = ("scipy",)
BFLOAT16_EPS = 2.0**-7  # relative, between neighbouring numbers
FOLDER = "AUTOSAGE_CACHE_DIR"
PLAIN_CALLS: Mapping[str, Callable[..., Any]] = {  # of the operations in `CHOSEN`
    "spmm": sparloom.spmm, "sddmm": sparloom.sddmm, "attention": sparloom.csr_attention}
Row = dict[str, Any]


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
        plans: folder of the decisions of tuned matrices, which are made once.
        roof: rates by which cases are bounded; None: they are not.
    """

    timing: TimingProtocol
    threads: int
    heads: int
    memory_bytes: float
    plans: Path
    seed: int
    roof: Roof | None = None

    def score(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Check every method, then time all in turn; return a row for each method and, with a `way`, for each choice.

        Freed memory stays available to the process for all methods. Slow baselines, see `side_by_side`, are timed twice
        by themselves, and the faster run counts.
        """
        torch.set_num_threads(self.threads)
        retain_memory()
        with suppress(Unsupported):
            trim_memory()
        operands = None if case.op in TRAINING else reallocated(self.operands(case, matrix))
        with layers_keep_in(self.plans):
            try:
                steps = self._steps(case, matrix) if operands is None else self._products(case.op, operands)
            except Unsupported as error:  # PyTorch Geometric is not installed
                return _failures({"pyg": f"{type(error).__name__}: {error}"})
            with pinned(self.threads), torch.inference_mode(case.op not in GRADIENTS):
                taken = side_by_side(steps.own, steps.baselines, steps.refused, self.timing, threads=self.threads,
                                     serial=SERIAL)
            about = {} if case.op in GRADIENTS else self._limits(case, operands)
            calls = {**steps.own, **steps.baselines}
            rows = [{"method": name, **statistics_of(each), **about, **self._peak(case, calls[name])}
                    for name, each in taken.items()]
        choices = self._choices(case.op, operands) if case.op in PLAIN_CALLS else []
        return rows + _failures(steps.refused) + choices

    def explore(self, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time every candidate and every library of a choice in turn; return a row for each."""
        torch.set_num_threads(self.threads)
        op, operands = OPERATIONS[case.op](self.heads), reallocated(self.operands(case, matrix))
        kernels, libraries = CpuKernels(self.threads, case.width), SPARSE_LIBRARIES.get(case.op, {})
        family = kernels.family(op)
        result, configs = family.result(operands), {config.key: config for config in kernels.space(op)}
        for row in self._choices(case.op, operands):
            if row["choice"] not in libraries:
                configs[row["choice"]] = Config.parse(kernels.name, row["choice"])
        calls: dict[str, Callable[[], Any]] = {
            name: family.bind(operands, config, result) for name, config in configs.items()}
        for name, library in libraries.items():
            calls[name] = partial(library(operands.matrix, self.threads), operands)
        with pinned(self.threads), torch.inference_mode():
            taken = interleaved(calls, self.timing, threads=self.threads, serial=SERIAL)
        return [{"method": name, **statistics_of(each)} for name, each in taken.items()]

    def operands(self, case: DispatchCase, matrix: SparseMatrix) -> Operands:
        """Draw operands; A has ones for SDDMM, since baselines do not multiply by its values."""
        if case.op == "sddmm":
            matrix = SparseMatrix(matrix.pattern, np.ones(matrix.pattern.nnz, np.float32))
        operands = OPERATIONS[case.op](self.heads).operands(matrix, case.width, self.seed)
        return operands.astype(np.float64) if case.op == "spmm_float64" else operands

    def _steps(self, case: DispatchCase, matrix: SparseMatrix) -> Steps:
        """Bind training, whose graphs are prepared here."""
        if case.op == "sage_training":
            return sage_aggregations(matrix.pattern, case.width, seed=self.seed)
        return layer_steps(LAYERS[case.op], matrix.pattern, case.width, seed=self.seed)

    def _products(self, name: str, operands: Operands) -> Steps:
        """Bind our calls and the baselines that are installed, correct, and fit the memory."""
        if name in CALLS:
            return CALLS[name](operands, self.threads)
        op, refused = OPERATIONS[name](self.heads), {}
        known = ReferenceRows(op, operands, CpuBackend(self.threads))
        if name == "spmm_bfloat16":
            values, dense = (rounded(each, BFLOAT16) for each in (operands.matrix.values, operands.dense["B"]))
            short = reallocated(Operands(SparseMatrix(operands.matrix.pattern, values, BFLOAT16), {"B": dense}))
            own = self._prepared_calls(op, short)
            known.check(as_float32(own["sparloom_new"].run()), eps=BFLOAT16_EPS)
            baselines = {"float32": self._prepared_calls(op, operands)["sparloom"].run}
        else:
            own = self._prepared_calls(op, operands) if name in TYPED else self._calls(op, operands)
            check_own(own, known)
            baselines = self._baselines(op.name, operands, known, refused)
        return Steps({method: call.run for method, call in own.items()}, baselines, refused)

    def _calls(self, op: Op, operands: Operands) -> dict[str, BoundMethod]:
        """Bind every way to call an operation.

        Returns:
            those of `_prepared_calls`; "call", a plain call with a matrix of SciPy; "tuned", a matrix that was tuned,
            into an array; "kernel", the kernel of the prepared matrix by itself.
        """
        calls = self._prepared_calls(op, operands)
        result = calls["sparloom"].out
        tuned = user_call(self._tuned(op.name, operands), op.name, operands.dense)
        plain = partial(PLAIN_CALLS[op.name], operands.matrix.to_scipy(), *operands.dense.values(),
                        threads=self.threads)
        config = self._prepared(operands).plan(op.name, **operands.dense).config
        kernel = CpuKernels(self.threads, operands.width).family(op).bind(operands, config, result)
        return {**calls, "call": BoundMethod(plain), "tuned": BoundMethod(partial(tuned, out=result), result),
                "kernel": BoundMethod(kernel, result)}

    def _prepared_calls(self, op: Op, operands: Operands) -> dict[str, BoundMethod]:
        """Bind a prepared matrix whose kernel the model chooses.

        Returns:
            "sparloom", into an array at the start of a page; "sparloom_new", into a new array.
        """
        call = user_call(self._prepared(operands), op.name, operands.dense)
        result = CpuKernels(self.threads, operands.width).family(op).result(operands)
        return {"sparloom": BoundMethod(partial(call, out=result), result), "sparloom_new": BoundMethod(call)}

    def _choices(self, op: str, operands: Operands) -> list[Row]:
        """Return what a plain call, a prepared and a tuned matrix run: a row each, with the cost of the decision."""
        plain = choose(op, operands.matrix.pattern, operands.width, caches=Caches.here(self.threads))
        plans = {way: ready.plan(op, **operands.dense) for way, ready in (
            ("prepared", self._prepared(operands)), ("tuned", self._tuned(op, operands)))}
        return [{"way": "default", "choice": plain.key}, *(
            {"way": way, **decision_columns(plan)} for way, plan in plans.items())]

    def _prepared(self, operands: Operands) -> Prepared:
        return Prepared(operands.matrix, threads=self.threads, cache=PlanCache(None))

    def _tuned(self, op: str, operands: Operands) -> Prepared:
        _load(op, self.threads)
        return Prepared(operands.matrix, threads=self.threads, tune=True, libraries=SPARSE_LIBRARIES,
                        cache=PlanCache(self.plans))

    def _baselines(
        self, op: str, operands: Operands, known: ReferenceRows, refused: dict[str, str],
    ) -> dict[str, Callable[[], Any]]:
        baselines = {}
        for name, bind in SPARSE_BASELINES[op].items():
            with note_failure(name, refused):
                if name in GATHERING and gathered_bytes(operands) > self.memory_bytes:
                    raise Unsupported(f"it makes {gathered_bytes(operands) / 2**30:.1f} GiB")
                call = bind(operands, self.threads)
                known.check(np.asarray(call()))
                baselines[name] = call
        return baselines

    def _limits(self, case: DispatchCase, operands: Operands) -> Row:
        """Return work and least seconds of a case."""
        op, dtype = OPERATIONS[case.op](self.heads), BFLOAT16 if case.op == "spmm_bfloat16" else operands.matrix.dtype
        work = op.work(operands.matrix.pattern, case.width)
        if self.roof is None:
            return {"flops": work.flops, "bytes": work.bytes}
        least = bound(op, _reuse(operands.matrix.pattern, self.threads), case.width, roof=self.roof, dtype=dtype)
        return {"flops": work.flops, "bytes": work.bytes, "bound_seconds": least.seconds,
                "compulsory_seconds": least.compulsory_seconds, "bound_by": least.limit}

    def _peak(self, case: DispatchCase, call: Callable[[], Any]) -> Row:
        """Return the peak memory of attention and of training steps, including a result that is allocated.

        What the native core remembers of patterns is forgotten before, so that of plain calls and layers counts, too.
        """
        if case.op not in ("attention", *LAYERS):
            return {}
        try:
            return {"peak_bytes": peak_bytes(call, _forget_results)}
        except Unsupported:
            return {}


def _forget_results() -> None:
    """Free the memory of dead results."""
    core = native_core()
    if core is not None:
        core.clear()


@cache
def _load(op: str, threads: int) -> None:
    """Load kernels and libraries by a decision on a small matrix, which is not stored."""
    pattern = Pattern((40, 40), 8 * np.arange(41), np.tile(np.arange(0, 40, 5), 40))
    operands = OPERATIONS[op](2).operands(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), 16, 0)
    Prepared(operands.matrix, threads=threads, tune=True, libraries=SPARSE_LIBRARIES, cache=PlanCache(None)).plan(
        op, **operands.dense)


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
