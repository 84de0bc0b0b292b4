"""Time operations whose kernel is chosen by measurement, beside other libraries and the best possible choice."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from sparloom import log
from sparloom.baselines import package_versions
from sparloom.data import write_frame
from sparloom.errors import SparloomError, Unsupported
from sparloom.experiments.autosage.cases import (
    CANDIDATES,
    DECISIONS,
    PER_CASE,
    UNDECIDED,
    DispatchCase,
    check_environment,
    dispatch_cases,
    frame_of,
)
from sparloom.experiments.autosage.cpu_cases import DispatchBench, PolicyVariant, ready_variants, stored_roof
from sparloom.experiments.autosage.cuda_cases import CudaDispatchBench
from sparloom.experiments.harness import CaseJournal, evenly_by_size, journal_folder, run_steps, timed_cases
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.nn import CUDA_SPARSE_LIBRARIES, SPARSE_LIBRARIES
from sparloom.platforms import CupyGpu, Gpu, keep_threads_awake
from sparloom.report import device_dispatch_metrics, dispatch_metrics, dispatch_tables, draw_dispatch
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

    One process makes the first calls of every case, which decide; another finds the decisions in the cache, checks
    every method against float64 and times all of them in turn; its cases have a bound, by peak rates that it measures
    first (`sparloom.platforms.bound`). A third one explores some cases: it times every
    candidate, which shows what the best decision would gain, and repeats the decision under other policies. An
    interrupted run continues if commit and settings are unchanged; after a change of `ways` only exploration restarts.

    Args:
        count: number of timed matrices, evenly over their nonzeros; None: all.
        ops: operation -> widths of dense operands, all heads together: "spmm", "sddmm", "attention"; on square patterns
            "sage_training" (neighbour means of a GraphSAGE training step, with gradients), "sage_steps" (whole steps),
            "gat_steps" and "gatv2_steps"; "spmm_float64" beside libraries in float64, and "spmm_bfloat16" beside our
            own product in float32.
        explored: number of explored matrices, evenly over their nonzeros.
        repeats: repetitions of a cold decision in explored cases.
        ways: name -> other policy or source of shortlists; `ready_variants` leaves out what cannot be compared.
        timing: protocol for methods in turn.
        memory_bytes: cases and baselines that need more memory are left out.
    """

    corpus: Corpus
    count: int | None
    ops: Mapping[str, Sequence[int]]
    heads: int
    explored: int
    explored_widths: Sequence[int]
    repeats: int
    ways: Mapping[str, PolicyVariant]
    policy: CsrPolicy
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
        return replace(self, ways=ready_variants(self.ways, self.corpus.entries()))._run(out)

    def _run(self, out: Path) -> Mapping[str, float]:
        keep_threads_awake()
        planned = {step: self._planned(step) for step in ("decide", "score", "explore")}
        entries = {entry.name: entry for entry in self.corpus.entries()}
        run_steps(
            list(planned), self.step,
            lambda step: {name: name for name, cases in planned[step].items() if self._missing(step, cases)},
            planned=planned.__getitem__,
            weight=lambda name: float((entries[name].nnz + CPU_FIXED) * len(planned["score"].get(name, ()))))
        scored, decided, explored = (
            list(self._rows(step, planned[step], entries)) for step in ("score", "decide", "explore"))
        frames = {
            "per_case": frame_of(scored, PER_CASE),
            "decisions": frame_of([*({**row, "way": "", "repeat": 0} for row in decided),
                                   *(row for row in explored if "way" in row)], DECISIONS),
            "candidates": frame_of((row for row in explored if "way" not in row), CANDIDATES)}
        for name, frame in frames.items():
            write_frame(out / f"{name}.parquet", frame)
        write_json(out / "peers.json", package_versions())
        with suppress(FileNotFoundError):  # no case was timed
            shutil.copyfile(self._folder / ROOF, out / ROOF)
        metrics = dispatch_metrics(**frames, seed=self.seed)
        for table in dispatch_tables(metrics):
            log.console.print(table)
        draw_dispatch(**frames, folder=out)
        shutil.rmtree(self._folder)
        return metrics

    def step(self, step: str, name: str) -> str:
        """Run the missing cases of a matrix; return the reason why that is impossible, or ""."""
        try:
            matrix = self.corpus.load(name)
        except (OSError, ValueError, SparloomError) as error:
            return f"cannot be read: {error}"
        bench = DispatchBench(
            self.timing, self.threads, self.heads, self.policy, SPARSE_LIBRARIES, self.memory_bytes, self.ways,
            self.repeats, self._folder / "plans", self.seed,
            stored_roof(self._folder / ROOF, self.threads) if step == "score" else None)
        for case in self._missing(step, self._planned(step)[name]):
            self._journal(step).append(case.key, getattr(bench, step)(case, matrix))
        return ""

    def _planned(self, step: str) -> dict[str, list[DispatchCase]]:
        entries: Sequence[MatrixEntry] = evenly_by_size(self.corpus.entries(), self.count)
        ops = self.ops
        if step != "score":
            ops = {op: widths for op, widths in ops.items() if op not in UNDECIDED}
        if step == "explore":
            entries, ops = evenly_by_size(entries, self.explored), dict.fromkeys(ops, self.explored_widths)
        return dispatch_cases(entries, ops, memory_bytes=self.memory_bytes)

    def _missing(self, step: str, cases: Sequence[DispatchCase]) -> list[DispatchCase]:
        done = self._journal(step).rows()
        return [case for case in cases if case.key not in done]

    def _rows(
        self, step: str, planned: Mapping[str, Sequence[DispatchCase]], entries: Mapping[str, MatrixEntry],
    ) -> Iterator[dict[str, object]]:
        """Yield one row per case and method, with facts of the matrix."""
        done = self._journal(step).rows()
        for name, cases in planned.items():
            for case in cases:
                for row in done.get(case.key, ()):
                    yield {"op": case.op, "matrix": name, "width": case.width, "rows": entries[name].rows,
                           "nnz": entries[name].nnz, "kind": entries[name].kind, **row}

    def _journal(self, step: str) -> CaseJournal:
        folder = journal_folder(str(self._folder), self.ways, self.repeats) if step == "explore" else self._folder
        return CaseJournal(folder / f"{step}.jsonl")

    @cached_property
    def _folder(self) -> Path:
        return journal_folder(self.journals, self.timing, self.policy, self.heads, self.threads, self.seed,
                              corpora=[self.corpus])


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
        cases = {case.key: case for each in planned.values() for case in each}
        folder = journal_folder(self.journals, [(entry.name, entry.nnz) for entry in entries.values()], self.timing,
                                self.policy, self.heads, self.memory_bytes, signature, self.seed,
                                corpora=[self.corpus])
        bench = CudaDispatchBench(where, torch.device(self.device), self.timing, self.heads, self.policy,
                                    self.memory_bytes, PlanCache(folder / "plans", keep_busy=True), self.seed)
        frame = timed_cases(
            partial(_case, bench, lru_cache(1)(self.corpus.load), entries), cases, folder / "cases.jsonl", threads=1,
            weights={key: float((entries[case.matrix].nnz + CUDA_FIXED) * case.width) for key, case in cases.items()})
        if "median" not in frame:
            shutil.rmtree(folder)
            raise Unsupported(f"none of {len(cases)} cases could be timed, {next(iter(cases))}: {frame['failure'][0]}")
        tables = _tables(frame)
        for name, table in tables.items():
            write_frame(out / f"{name}.parquet", table)
        write_json(out / "peers.json", package_versions(PACKAGES))
        write_json(out / "device.json", signature)
        metrics = device_dispatch_metrics(**tables, seed=self.seed)
        for table in dispatch_tables(metrics):
            log.console.print(table)
        draw_dispatch(**tables, candidates=pd.DataFrame(), folder=out, least_seconds=0.0)
        shutil.rmtree(folder)
        return metrics


def _case(
    bench: CudaDispatchBench, load: Callable[[str], SparseMatrix], entries: Mapping[str, MatrixEntry],
    case: DispatchCase,
) -> list[dict[str, Any]]:
    """Run one case: a row for each decision and each method, or one row with the reason why it is left out."""
    entry = entries[case.matrix]
    about = dict(zip(ABOUT, (case.op, case.matrix, case.width, entry.rows, entry.nnz, entry.kind), strict=True))
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
