"""Time the CPU kernels beside those of other libraries: tall GEMM, SpMM, and GeMM-SpMM without fusion."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom import log
from sparloom.baselines import SPMM_BASELINES, mkl_pair, package_versions, torch_gemm, torch_pair
from sparloom.errors import Unsupported
from sparloom.experiments.fusion.pairs import PairCheck
from sparloom.experiments.harness import finish, statistics_of
from sparloom.fusion import Executor, Variant, pinned, tall_gemm, unfused_schedule
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import GEMM, GemmShape, GemmSpmm, OracleBounds, SpMM
from sparloom.platforms import SpmmKernels, interleaved, reallocated
from sparloom.report import ratio_bounds
from sparloom.sparse import Corpus, SparseMatrix

logger = logging.getLogger(__name__)

OWN = "own"
SERIAL = ("scipy",)
BASELINES = ("torch", "mkl", "numba", "scipy")
Call = Callable[[], None]


@dataclass(frozen=True)
class TimedProblem:
    """Calls that compute the same result, and the array that they write.

    Args:
        check: checks the result of a call; the array is filled with NaN before the call.
    """

    calls: Mapping[str, Call]
    result: np.ndarray
    check: Callable[[np.ndarray], None]


@dataclass(frozen=True)
class BenchKernels:
    """Time kernels in turn on the same arrays; some rows of every result are compared with float64 first.

    Results are allocated beforehand, except SciPy's. Baselines that are not installed are left out. Our kernels use one
    setting for all problems, which was tuned on these generated matrices, while libraries were tuned elsewhere.

    Args:
        corpus: square matrices.
        widths: widths of all dense matrices; the small matrix of the GEMM is square.
        prefetch_kib: prefetch distance in a gathered dense operand; results are written past the caches.
    """

    corpus: Corpus
    timing: TimingProtocol
    gemm_rows: int
    widths: Sequence[int]
    threads: int
    prefetch_kib: int
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, a row per method and problem, and peers.json; return ratios of seconds."""
        rows = []
        with pinned(self.threads):
            for problem, measured in log.track(self._measured(), "problems", total=self._problems()):
                rows += [{**problem, "method": method, **statistics_of(taken)}
                         for method, taken in measured.items()]
        frame = pd.DataFrame(rows)
        return finish(out, None, kernel_metrics(frame, seed=self.seed), facts={"peers": package_versions()},
                      per_matrix=frame)

    def _problems(self) -> int:
        return len(self.widths) * (1 + 2 * len(self.corpus.entries()))

    def _measured(self) -> Iterator[tuple[dict[str, str | int], dict[str, Measurement]]]:
        for width in self.widths:
            yield {"op": "gemm", "matrix": "", "width": width}, self._timed(self._gemm(width))
        for entry in self.corpus.entries():
            matrix = self.corpus.load(entry.name)
            for width in self.widths:
                for op, problem in (("spmm", self._spmm), ("gemm_spmm", self._gemm_spmm)):
                    yield {"op": op, "matrix": entry.name, "width": width}, self._timed(problem(matrix, width))

    def _gemm(self, width: int) -> TimedProblem:
        op, shape = GEMM(), GemmShape(self.gemm_rows, width, width)
        operands = reallocated(op.operands(shape, seed=self.seed))
        left, right = operands.dense["A"], operands.dense["B"]
        own, result = tall_gemm(left, right, threads=self.threads, variant=self._variant)
        known = OracleBounds(op.oracle(operands), terms=op.terms(shape), scale=op.scale(operands))
        calls = {OWN: own, "torch": torch_gemm(left, right, result, threads=self.threads)}
        return TimedProblem(calls, result, known.check)

    def _spmm(self, matrix: SparseMatrix, width: int) -> TimedProblem:
        op = SpMM()
        operands = reallocated(op.operands(matrix, width, self.seed))
        kernels = SpmmKernels(self.threads, width)
        result = kernels.result(operands)
        config = kernels.space().default().replace(prefetch=self.prefetch_kib, stream=1)
        baselines = {name: partial(bind, matrix, operands.dense["B"], result, threads=self.threads)
                 for name, bind in SPMM_BASELINES.items()}
        calls = {OWN: kernels.bind(operands, config, result)} | _installed(baselines)
        return TimedProblem(calls, result, kernels.check(op, operands, seed=self.seed))

    def _gemm_spmm(self, matrix: SparseMatrix, width: int) -> TimedProblem:
        op = GemmSpmm()
        operands = reallocated(op.operands(matrix, width, self.seed))
        executor = Executor(op, unfused_schedule(matrix.pattern, threads=self.threads), self.threads, self._variant)
        result = executor.result(operands)
        baselines = {name: partial(bind, op, operands, result, threads=self.threads)
                 for name, bind in (("mkl", mkl_pair), ("torch", torch_pair))}
        calls = {OWN: executor.bind(operands, result)} | _installed(baselines)
        return TimedProblem(calls, result, PairCheck(op, operands, seed=self.seed).check)

    @property
    def _variant(self) -> Variant:
        return Variant(stream=True, stream_first=True, prefetch_bytes=1024 * self.prefetch_kib)

    def _timed(self, problem: TimedProblem) -> dict[str, Measurement]:
        for name, call in problem.calls.items():
            problem.result.fill(np.nan)
            call()
            try:
                problem.check(problem.result)
            except AssertionError as error:
                raise AssertionError(f"the result of {name} differs from the oracle: {error}") from error
        return interleaved(problem.calls, self.timing, threads=self.threads, serial=SERIAL)


def kernel_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Compute speedups of our kernels over the baselines.

    Args:
        frame: per_matrix.parquet of `BenchKernels`.

    Returns:
        `gemm/<width>/over_torch`: median over interleaved repetitions, with `_p10` and `_p90`.
        `spmm/over_<baseline>` and `spmm/over_best_peer` (the fastest baseline of each problem): geometric means over
        problems (matrix and width) of ratios of median seconds, with 95 % bootstrap bounds `_low` and `_high` and the
        extremes `_min` and `_max`; the latter also by width, `spmm/<width>/over_best_peer`. Likewise
        `gemm_spmm/over_mkl` and `gemm_spmm/over_torch`.
    """
    found: dict[str, float] = {}
    dense = frame[frame["op"] == "gemm"]
    for width, rows in dense.groupby("width", sort=False):
        taken = {method: np.array(seconds) for method, seconds in zip(rows["method"], rows["seconds"], strict=True)}
        repetitions = min(map(len, taken.values()))
        ratio = taken["torch"][:repetitions] / taken[OWN][:repetitions]
        for name, share in (("", 0.5), ("_p10", 0.1), ("_p90", 0.9)):
            found[f"gemm/{width}/over_torch{name}"] = float(np.quantile(ratio, share))
    for op in ("spmm", "gemm_spmm"):
        seconds = frame[frame["op"] == op].pivot(index=["matrix", "width"], columns="method", values="median")
        baselines = [name for name in BASELINES if name in seconds]
        for name in baselines:
            found |= ratio_bounds(f"{op}/over_{name}", seconds[name] / seconds[OWN], seed=seed)
        if op == "spmm" and baselines:
            best = seconds[baselines].min(axis=1) / seconds[OWN]
            found |= ratio_bounds("spmm/over_best_peer", best, seed=seed)
            for width, ratio in best.groupby("width"):
                found |= ratio_bounds(f"spmm/{width}/over_best_peer", ratio, seed=seed)
    return found


def _installed(baselines: Mapping[str, Callable[[], Call]]) -> dict[str, Call]:
    calls = {}
    for name, bind in baselines.items():
        try:
            calls[name] = bind()
        except Unsupported as error:
            logger.warning("%s is left out: %s", name, error)
    return calls
