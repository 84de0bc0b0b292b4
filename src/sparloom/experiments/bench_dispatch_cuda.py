"""How fast operations are on a GPU whose kernel is decided by measurement, beside cuSPARSE and PyTorch.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from sparloom import log
from sparloom.data import write_frame
from sparloom.errors import SparloomError, Unsupported
from sparloom.experiments.case_journal import journal_folder
from sparloom.experiments.dispatch_cases import DispatchCase, dispatch_cases, spread_out
from sparloom.experiments.dispatch_device import DeviceDispatchBench
from sparloom.experiments.kernel_peers import peer_versions
from sparloom.experiments.timed_cases import timed_cases
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.nn import CUDA_SPARSE_LIBRARIES
from sparloom.platforms import CupyGpu, Gpu
from sparloom.report import device_dispatch_metrics, dispatch_tables, draw_dispatch
from sparloom.sparse import Corpus, MatrixEntry, SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CsrPolicy, CudaPlace

__all__ = ["BenchDispatchCuda"]

REFUSALS = (Unsupported, AssertionError, MemoryError, torch.OutOfMemoryError)
FIXED = 2_000_000  # nonzeros that take about as long as what a case takes however small its matrix is
PACKAGES = ("torch", "torch-geometric", "cupy-cuda12x", "cupy-cuda13x", "numpy")
ABOUT = ("op", "matrix", "width", "rows", "nnz", "kind")
DECISION = ("way", "own", "choice", "origin", "reason", "decision_seconds", "decision_executions")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchDispatchCuda:
    """Time SpMM, SDDMM and attention on a sparse pattern on a GPU, as users call them, by events of the device.

    Of every case the kernel is decided twice, looked up again and run beside cuSPARSE's algorithms, gather-dot and
    attention composed of torch's operations, all of which are checked; and beside itself with loads of one value and
    of four. A run that is killed goes on at the case where it was.

    Args:
        corpus: of matrices.
        count: of matrices that are timed, evenly over their nonzeros; None: all.
        ops: "spmm", "sddmm", "attention"; on the square patterns "sage_training", the means over neighbours in a step
            of training GraphSAGE with their gradients, and "sage_steps", whole steps. Each with the widths of dense
            operands, all heads together.
        heads: of attention.
        policy: of decisions; None: that of GPUs.
        timing: of methods side by side.
        memory_bytes: cases that need more are left out, and peers that do.
        device: of PyTorch's tensors.
        journals: folder of what is under way; emptied when it is complete.
        seed: of operands and of the bootstrap.
        gpu: where all runs; None: the current device of CuPy.
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
        """Write per_case.parquet, decisions.parquet, peers.json, device.json and figures; returns ratios of seconds.

        Raises:
            Unsupported: there is no GPU, or CuPy is missing; names the remedy. Or no case could be timed.
        """
        where = CudaPlace(self.gpu or CupyGpu.current(), CUDA_SPARSE_LIBRARIES)
        signature = dict(where.gpu.signature())
        entries = {entry.name: entry for entry in spread_out(self.corpus.entries(), self.count)}
        planned = dispatch_cases(list(entries.values()), self.ops, memory_bytes=self.memory_bytes)
        cases = {case.key: case for each in planned.values() for case in each}
        folder = journal_folder(self.journals, [(entry.name, entry.nnz) for entry in entries.values()], self.timing,
                                self.policy, self.heads, self.memory_bytes, signature, self.seed,
                                corpora=[self.corpus])
        bench = DeviceDispatchBench(where, torch.device(self.device), self.timing, self.heads, self.policy,
                                    self.memory_bytes, PlanCache(folder / "plans", keep_busy=True), self.seed)
        frame = timed_cases(
            partial(_case, bench, lru_cache(1)(self.corpus.load), entries), cases, folder / "cases.jsonl", threads=1,
            weights={key: float((entries[case.matrix].nnz + FIXED) * case.width) for key, case in cases.items()})
        if "median" not in frame:
            shutil.rmtree(folder)
            raise Unsupported(f"none of {len(cases)} cases could be timed, {next(iter(cases))}: {frame['failure'][0]}")
        tables = _tables(frame)
        for name, table in tables.items():
            write_frame(out / f"{name}.parquet", table)
        write_json(out / "peers.json", peer_versions(PACKAGES))
        write_json(out / "device.json", signature)
        metrics = device_dispatch_metrics(**tables, seed=self.seed)
        for table in dispatch_tables(metrics):
            log.console.print(table)
        draw_dispatch(**tables, candidates=pd.DataFrame(), folder=out, least_seconds=0.0)
        shutil.rmtree(folder)
        return metrics


def _case(
    bench: DeviceDispatchBench, load: Callable[[str], SparseMatrix], entries: Mapping[str, MatrixEntry],
    case: DispatchCase,
) -> list[dict[str, Any]]:
    """Do one case: a row for each decision and each method; one that says why where it is left out."""
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
        torch.cuda.empty_cache()  # CuPy cannot have what torch keeps


def _left_out(case: DispatchCase, reason: str) -> dict[str, str]:
    logger.warning("%s is left out: %s", case.key, reason)
    return {"method": "sparloom", "failure": reason}


def _tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Part the rows of methods from those of decisions."""
    decided = frame["method"].isna()
    return {"per_case": frame[~decided].drop(columns=list(DECISION), errors="ignore").dropna(axis=1, how="all"),
            "decisions": frame[decided].reindex(columns=[*ABOUT, *DECISION])}
