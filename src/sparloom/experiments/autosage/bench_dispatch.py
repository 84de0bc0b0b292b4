"""Time sparse operations as users call them, beside other libraries and the best possible choice of a kernel."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from sparloom.baselines import library_versions
from sparloom.errors import SparloomError, Unsupported
from sparloom.experiments.autosage.cases import (
    CANDIDATES,
    CHOSEN,
    DECISIONS,
    PER_CASE,
    DispatchCase,
    check_environment,
    dispatch_cases,
    frame_of,
)
from sparloom.experiments.autosage.cpu_cases import DispatchBench, stored_roof
from sparloom.experiments.autosage.cuda_cases import CudaDispatchBench
from sparloom.experiments.harness import CaseSteps, evenly_by_size, finish, run_folder, timed_cases
from sparloom.measure import TimingProtocol
from sparloom.nn import CUDA_SPARSE_LIBRARIES
from sparloom.platforms import CupyGpu, Gpu, keep_threads_awake
from sparloom.report import device_dispatch_metrics, dispatch_metrics, draw_dispatch
from sparloom.resources import package_versions
from sparloom.sparse import Corpus, MatrixEntry, SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CsrPolicy, CudaBackend

ROOF = "roof.json"
CPU_FIXED = 1_000_000  # nonzeros that take about as long as the fixed cost of a case
logger = logging.getLogger(__name__)
REFUSALS = (Unsupported, AssertionError, MemoryError, torch.OutOfMemoryError)
CUDA_FIXED = 2_000_000  # nonzeros that take about as long as the fixed cost of a case
PACKAGES = ("torch", "torch-geometric", "cupy-cuda12x", "cupy-cuda13x", "numpy")
ABOUT = ("op", "matrix", "width", "rows", "nnz", "kind")
DECISION = ("way", "own", "choice", "origin", "reason", "decision_seconds", "decision_executions")


@dataclass(frozen=True)
class BenchDispatch:
    """Time SpMM, SDDMM and attention on a sparse pattern, as users call them, beside other libraries.

    One process checks every method and times all of them in turn: calls as they come, a prepared and a tuned matrix,
    and libraries. Its cases have a bound, by peak rates that it measures first (`sparloom.platforms.bound`). Another
    one explores some cases: it times every candidate, which shows what the best choice would gain. An interrupted run
    continues if commit and settings are unchanged.

    Args:
        count: number of timed matrices, evenly over their nonzeros; None: all.
        ops: operation -> widths of dense operands, all heads together: "spmm", "sddmm", "attention"; "spmm_fresh" with
            new index arrays in every call, "spmm_torch" and "spmm_gradient" on torch's tensors; "spmm_float64" beside
            libraries in float64, and "spmm_bfloat16" beside our own product in float32; on square patterns
            "sage_training" (neighbour means of a GraphSAGE training step, with gradients), and whole training steps:
            "gcn_steps", "sage_steps", "gin_steps", "gat_steps", "gatv2_steps".
        explored: number of explored matrices, evenly over their nonzeros.
        timing: protocol for methods in turn.
        memory_bytes: cases and baselines that need more memory are left out.
    """

    corpus: Corpus
    count: int | None
    ops: Mapping[str, Sequence[int]]
    heads: int
    explored: int
    explored_widths: Sequence[int]
    timing: TimingProtocol
    threads: int
    memory_bytes: float
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, decisions.parquet, candidates.parquet, peers.json, roof.json, figures; return ratios.

        Raises:
            ValueError: variables AUTOSAGE_* are set, which change decisions or their cache.
        """
        check_environment()
        keep_threads_awake()
        entries = {entry.name: entry for entry in self.corpus.entries()}
        planned = {step: self._planned(step) for step in ("score", "explore")}
        steps = CaseSteps(self._folder, planned, self._load, self._measure, {
            name: float((entries[name].nnz + CPU_FIXED) * len(cases)) for name, cases in planned["score"].items()})
        steps.run()
        scored, explored = ([_about(case, entries[case.matrix]) | row for case, row in steps.rows(step)]
                            for step in planned)
        frames = {
            "per_case": frame_of((row for row in scored if "way" not in row), PER_CASE),
            "decisions": frame_of((row for row in scored if "way" in row), DECISIONS),
            "candidates": frame_of(explored, CANDIDATES)}
        with suppress(FileNotFoundError):  # no case was timed
            shutil.copyfile(self._folder / ROOF, out / ROOF)
        return finish(out, self._folder, dispatch_metrics(**frames, seed=self.seed),
                      lambda folder: draw_dispatch(**frames, folder=folder), facts={"peers": library_versions()},
                      **frames)

    def _load(self, case: DispatchCase) -> SparseMatrix:
        return self.corpus.load(case.matrix)

    def _measure(self, step: str, case: DispatchCase, matrix: SparseMatrix) -> list[dict[str, Any]]:
        bench = DispatchBench(
            self.timing, self.threads, self.heads, self.memory_bytes, self._folder / "plans", self.seed,
            stored_roof(self._folder / ROOF, self.threads) if step == "score" else None)
        return {"score": bench.score, "explore": bench.explore}[step](case, matrix)

    def _planned(self, step: str) -> dict[str, dict[str, DispatchCase]]:
        entries: Sequence[MatrixEntry] = evenly_by_size(self.corpus.entries(), self.count)
        ops = self.ops
        if step == "explore":
            entries = evenly_by_size(entries, self.explored)
            ops = {op: [width for width in widths if width in self.explored_widths] for op, widths in ops.items()
                   if op in CHOSEN}
        return dispatch_cases(entries, ops, memory_bytes=self.memory_bytes)

    @cached_property
    def _folder(self) -> Path:
        return run_folder(self, corpora=[self.corpus])


def _about(case: DispatchCase, entry: MatrixEntry) -> dict[str, object]:
    """Return the columns that name a case, and facts of its matrix."""
    return dict(zip(ABOUT, (case.op, case.matrix, case.width, entry.rows, entry.nnz, entry.kind), strict=True))


@dataclass(frozen=True)
class BenchDispatchCuda:
    """Time SpMM, SDDMM and attention on a sparse pattern on a GPU, as users call them, by events of the device.

    The kernel of every case is decided twice, looked up again and timed beside cuSPARSE's algorithms, gather-dot and
    attention composed of torch operations, and beside itself with loads of one and of four values. All results are
    checked. An interrupted run continues with the next case.

    Args:
        corpus, count, ops, heads, timing, memory_bytes, journals, seed: see `BenchDispatch`.
        policy: policy of decisions; None: the default of GPUs.
        device: device of PyTorch's tensors.
        gpu: device of our kernels; None: the current device of CuPy.
    """

    corpus: Corpus
    count: int | None
    ops: Mapping[str, Sequence[int]]
    heads: int
    policy: CsrPolicy | None
    timing: TimingProtocol
    memory_bytes: float
    device: str
    journals: str
    seed: int
    gpu: Gpu | None = None

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, decisions.parquet, peers.json, device.json and figures; return ratios of seconds.

        Raises:
            Unsupported: there is no GPU or no CuPy, or no case could be timed.
        """
        where = CudaBackend(self.gpu or CupyGpu.current(), CUDA_SPARSE_LIBRARIES)
        signature = dict(where.gpu.signature())
        entries = {entry.name: entry for entry in evenly_by_size(self.corpus.entries(), self.count)}
        planned = dispatch_cases(list(entries.values()), self.ops, memory_bytes=self.memory_bytes)
        cases = {key: case for each in planned.values() for key, case in each.items()}
        folder = run_folder(self, [(entry.name, entry.nnz) for entry in entries.values()], signature,
                            corpora=[self.corpus], without=("gpu",))
        bench = CudaDispatchBench(where, torch.device(self.device), self.timing, self.heads, self.policy,
                                  self.memory_bytes, PlanCache(folder / "plans"), self.seed)
        frame = timed_cases(
            partial(_case, bench, lru_cache(1)(self.corpus.load), entries), cases, folder, threads=1,
            costs={key: float((entries[case.matrix].nnz + CUDA_FIXED) * case.width) for key, case in cases.items()})
        if "median" not in frame:
            shutil.rmtree(folder)
            raise Unsupported(f"none of {len(cases)} cases could be timed, {next(iter(cases))}: {frame['failure'][0]}")
        tables = _tables(frame)
        return finish(out, folder, device_dispatch_metrics(**tables, seed=self.seed),
                      lambda out: draw_dispatch(**tables, candidates=pd.DataFrame(), folder=out, least_seconds=0.0),
                      facts={"peers": package_versions(PACKAGES), "device": signature}, **tables)


def _case(
    bench: CudaDispatchBench, load: Callable[[str], SparseMatrix], entries: Mapping[str, MatrixEntry],
    case: DispatchCase,
) -> list[dict[str, Any]]:
    """Run one case: a row for each decision and each method, or one row with the reason why it is left out."""
    about = _about(case, entries[case.matrix])
    try:
        matrix = load(case.matrix)
    except (OSError, ValueError, SparloomError) as error:
        return [about | _left_out(case, f"cannot be read: {error}")]
    try:
        return [about | row for row in bench.rows(case, matrix)]
    except REFUSALS as error:
        return [about | _left_out(case, f"{type(error).__name__}: {error}")]
    finally:
        torch.cuda.empty_cache()  # CuPy cannot use memory that torch caches


def _left_out(case: DispatchCase, reason: str) -> dict[str, str]:
    logger.warning("%s is left out: %s", case.key, reason)
    return {"method": "sparloom", "failure": reason}


def _tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Separate the rows of methods from those of decisions."""
    decided = frame["method"].isna()
    return {"per_case": frame[~decided].drop(columns=list(DECISION), errors="ignore").dropna(axis=1, how="all"),
            "decisions": frame[decided].reindex(columns=[*ABOUT, *DECISION])}
