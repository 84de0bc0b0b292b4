"""Define the cases of the tile-fusion benchmark; decide, check and time one of them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from sparloom.errors import Unsupported
from sparloom.experiments.fusion.methods import SERIAL, Method, Methods
from sparloom.experiments.harness import evenly_by_size
from sparloom.fusion import Pair, access_cycles, machine_levels, pinned, potential_gain
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Operands, assert_close
from sparloom.platforms import interleaved, reallocated
from sparloom.sparse import Corpus, MatrixEntry, Pattern, SparseMatrix
from sparloom.tuning import PairPlan, PlanCache, plan_pair

METHODS = (
    "unfused", "auto", "fused", "local", "separated", "coarse", "sequential", "mkl", "torch", "scipy", "overlapped",
    "atomic", "gemv", "blas_gemv", "listing",
)
"""Methods in the order of their runs and tables; the first one is fast."""

ROWS = 32  # random rows that `PairCheck` compares, in addition to the longest
DECIDED = {"unfused": "never", "auto": "auto"}  # method -> argument of `plan_pair`
GAIN_RUNS = 7
WATCHED = ("unfused", "fused", "auto")  # timed by thread; with "coarse", also by memory access time
Row = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Methods for some operations, widths and matrices.

    Args:
        part: "anchors" or "real".
        threads: threads of every parallel method.
        count: largest number of matrices, evenly over their nonzeros; None: all.
    """

    part: str
    ops: Sequence[str]
    widths: Sequence[int]
    threads: int
    count: int | None
    methods: Sequence[str]


@dataclass(frozen=True)
class Case:
    """One product, timed by several methods in turn."""

    part: str
    matrix: str
    op: str
    width: int
    threads: int
    methods: tuple[str, ...]

    @property
    def problem(self) -> str:
        return " ".join(map(str, (self.part, self.matrix, self.op, self.width, self.threads)))

    @property
    def key(self) -> str:
        return f"{self.problem} {','.join(self.methods)}"


def fusion_set(corpus: Corpus, *, least_nonzeros: int) -> list[MatrixEntry]:
    """Choose square matrices that are positive definite or graphs and have more than `least_nonzeros` nonzeros.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §5.1.2. Kinds are those of the collection.
    """
    return [entry for entry in corpus.entries()
            if entry.rows == entry.cols and entry.nnz > least_nonzeros and (entry.spd or "graph" in entry.kind)]


def cases(blocks: Iterable[Block], part: str, entries: Sequence[MatrixEntry]) -> dict[str, list[Case]]:
    """List the cases of one part by matrix; methods of blocks with the same case are joined.

    Raises:
        ValueError: a block names an unknown method.
    """
    found: dict[str, dict[tuple[str, int, int], set[str]]] = {entry.name: {} for entry in entries}
    for block in blocks:
        unknown = sorted(set(block.methods) - set(METHODS))
        if unknown:
            raise ValueError(f"no method {', '.join(unknown)}: choose from {', '.join(METHODS)}")
        if block.part != part:
            continue
        for entry in evenly_by_size(entries, block.count):
            for op in block.ops:
                for width in block.widths:
                    found[entry.name].setdefault((op, width, block.threads), set()).update(block.methods)
    return {name: [Case(part, name, *key, tuple(method for method in METHODS if method in methods))
                   for key, methods in wanted.items()]
            for name, wanted in found.items() if wanted}


class PairCheck:
    """Check results of one problem: some rows against the float64 oracle, and all against the first result.

    Args:
        op, operands: the problem; a sparse B equals A.
    """

    def __init__(self, op: Pair, operands: Operands, *, seed: int) -> None:
        pattern = operands.matrix.pattern
        drawn = np.random.default_rng(seed).choice(pattern.rows, size=min(ROWS, pattern.rows), replace=False)
        self._rows = np.unique([*drawn, int(np.argmax(pattern.row_lengths()))])
        self._oracle = op.oracle(_some_rows(operands, self._rows))
        self._terms = op.terms(pattern, op.width(operands))
        self._scale = op.scale(operands)
        if operands.right is not None:  # errors of similar rows of D1 have equal signs and add up
            self._scale = self._scale * (1 + pattern.row_lengths() / 8)[:, None]
        limits = np.finfo(operands.matrix.dtype)
        self._tolerance = (8 * limits.eps * self._scale * (self._terms + 1) + limits.tiny).astype(limits.dtype)
        self._first: np.ndarray | None = None

    def check(self, result: np.ndarray) -> None:
        rows = self._rows
        assert_close(result[rows], self._oracle, terms=self._terms[rows], scale=self._scale[rows])
        if self._first is None:
            if not np.isfinite(result).all():
                raise AssertionError(f"{int((~np.isfinite(result)).sum())} elements are not finite")
            self._first = result.copy()
            return
        error = result - self._first
        if not (np.abs(error, out=error) <= self._tolerance).all():
            excess = np.where(np.isfinite(error), error / self._tolerance.astype(np.float64), np.inf)
            worst = np.unravel_index(int(np.argmax(excess)), error.shape)
            raise AssertionError(f"element {tuple(map(int, worst))} is {float(result[worst])!r}, the first method has "
                                 f"{float(self._first[worst])!r}")


def _some_rows(operands: Operands, rows: np.ndarray) -> Operands:
    """Take rows of A, and the rows of B that they read."""
    part = _rows(operands.matrix, rows)
    reached, columns = np.unique(part.pattern.indices, return_inverse=True)
    left = SparseMatrix(Pattern((rows.size, reached.size), part.pattern.indptr, columns), part.values, part.dtype)
    if operands.right is not None:
        return replace(operands, matrix=left, right=_rows(operands.right, reached))
    return replace(operands, matrix=left, dense={**operands.dense, "B": operands.dense["B"][reached]})


def _rows(matrix: SparseMatrix, rows: np.ndarray) -> SparseMatrix:
    pattern = matrix.pattern
    source, indptr = pattern.nonzeros_of(rows), np.concatenate([[0], np.cumsum(pattern.row_lengths()[rows])])
    return SparseMatrix(Pattern((rows.size, pattern.cols), indptr, pattern.indices[source]), matrix.values[source],
                        matrix.dtype)


@dataclass(frozen=True)
class FusionBench:
    """Settings that all cases share.

    Args:
        cache: cache of decisions, in which another process finds them.
        gemv_flops: see `Methods`.
    """

    ops: Mapping[str, Pair]
    timing: TimingProtocol
    cache: PlanCache
    gemv_flops: float
    seed: int


def decide(bench: FusionBench, case: Case, matrix: SparseMatrix) -> list[Row]:
    """Decide the best unfused program and the best of all; return a row with the cost of each decision."""
    rows = []
    op = bench.ops[case.op]
    with pinned(case.threads):
        operands = op.operands(matrix, case.width, bench.seed)
        for method, fuse in DECIDED.items():
            plan = plan_pair(op, operands, fuse=fuse, threads=case.threads, cache=bench.cache)
            rows.append({"method": method, "choice": json.dumps(asdict(plan.choice)),
                         "reason": plan.decision.reason, "decision_seconds": plan.decision.seconds,
                         "decision_executions": plan.decision.executions})
    return rows


def score(bench: FusionBench, case: Case, matrix: SparseMatrix) -> list[Row]:
    """Check every method and time all of them in turn; return a row for each. Decisions are looked up.

    Raises:
        NotDecided: the case was not decided before.
    """
    op = bench.ops[case.op]
    with pinned(case.threads), _one_blas_thread():
        operands = reallocated(op.operands(matrix, case.width, bench.seed))
        plans = {method: plan_pair(op, operands, fuse=fuse, threads=case.threads, cache=bench.cache, replay_only=True)
                 for method, fuse in DECIDED.items()}
        methods, rows = _methods(bench, case, operands, plans)
        same = plans["auto"].choice == plans["unfused"].choice
        timed = {name: method.call for name, method in methods.items() if not (same and name == "auto")}
        taken = interleaved(timed, bench.timing, threads=case.threads, serial=SERIAL)
        if same and "auto" in methods:
            taken["auto"] = taken["unfused"]
        facts = {"same": same, "flops": op.work(matrix.pattern, case.width).flops}
        for name, method in methods.items():
            rows.append({"method": name, **_statistics(taken[name]), **method.facts, **facts})
            if name in WATCHED:
                rows[-1]["gain_seconds"] = _gain(method)
                if "coarse" in methods:
                    rows[-1] |= _access(method)
    return rows


def _methods(
    bench: FusionBench, case: Case, operands: Operands, plans: Mapping[str, PairPlan],
) -> tuple[dict[str, Method], list[Row]]:
    """Bind and check the methods; those that are unsupported or wrong become rows with a failure."""
    op = bench.ops[case.op]
    result = plans["unfused"].executor.result(operands)
    maker = Methods(op, operands, result, threads=case.threads, plans=dict(plans), gemv_flops=bench.gemv_flops)
    check = PairCheck(op, operands, seed=bench.seed)
    methods, failed = {}, []
    for name in case.methods:
        try:
            method = maker.make(name)
            result.fill(np.nan)
            method.call()
            check.check(method.in_place(result))
            methods[name] = method
        except (Unsupported, AssertionError) as error:
            failed.append({"method": name, "failure": f"{type(error).__name__}: {error}"})
    return methods, failed


def _statistics(measured: Measurement) -> Row:
    seconds = np.array(measured.seconds)
    low, middle, high = np.quantile(seconds, (0.1, 0.5, 0.9))
    return {"seconds": float(middle), "seconds_p10": float(low), "seconds_p90": float(high),
            "repetitions": seconds.size, "cpu_seconds": float(np.median(measured.cpu_seconds)),
            "stolen": measured.stolen}


def _gain(method: Method) -> float:
    """Return the time that perfect load balance would have saved, median of a few runs."""
    executor = replace(method.executor, timed=True)
    call = executor.bind(method.operands, executor.result(method.operands))
    gains = []
    for _ in range(GAIN_RUNS):
        call()
        gains.append(potential_gain(executor.seconds))
    return float(np.median(gains))


def _access(method: Method) -> Row:
    """Return the average memory access time: counted by the processor, else simulated."""
    executor, operands, pattern = method.executor, method.operands, method.operands.matrix.pattern
    levels = machine_levels(executor.threads)
    inner = 0 if operands.right is not None else operands.dense["B"].shape[1]
    cycles = access_cycles(executor.op, pattern, executor.schedule, inner=inner, width=executor.op.width(operands),
                           threads=executor.threads, variant=executor.variant, levels=levels)
    return {"access_cycles": cycles, "access_source": "simulated"}


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Limit the BLAS of SciPy, which our kernels call from many threads, and that of NumPy to one thread.

    Their threads are not OpenMP threads, so both kinds would compete for the processors.
    """
    with ThreadpoolController().select(internal_api="openblas").limit(limits=1):
        yield
