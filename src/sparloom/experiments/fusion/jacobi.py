"""Time two steps of Jacobi's method on linear systems, ours and those of other libraries."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from threadpoolctl import ThreadpoolController

from sparloom.errors import Unsupported
from sparloom.experiments.harness import CaseJournal, CaseSteps, finish, run_folder
from sparloom.fusion import pinned, separated
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import interleaved, keep_threads_awake
from sparloom.report import draw_jacobi, jacobi_metrics
from sparloom.solvers import JacobiSolver, Sweeps, converging_relaxation
from sparloom.sparse import Corpus, MatrixEntry, Pattern, SparseMatrix
from sparloom.tuning import PlanCache

BASELINES = ("mkl", "torch", "scipy")
SERIAL = ("scipy",)
OWN = {  # method -> settings of its plan
    "unfused": {"fuse": "never"}, "auto": {"fuse": "auto"}, "fused": {"fuse": "always"},
    "fused_natural": {"fuse": "always", "numbering": "natural"},
    "unfused_renumbered": {"fuse": "never", "numbering": "bandwidth"},
}
STEPS = ("decide", "score")
CHECKED = 3  # calls after which all methods must have the same iterate
Row = dict[str, Any]


class System(NamedTuple):
    """A linear system: part and matrix."""

    part: str
    matrix: str


def jacobi_set(corpus: Corpus, part: str, *, least_nonzeros: int) -> Sequence[MatrixEntry]:
    """Choose square matrices with more than `least_nonzeros` nonzeros.

    Args:
        part: "definite": symmetric positive definite ones; "pattern": other symmetric ones that are not graphs, which
            are systems whose values the collection lacks; "anchors": all.
    """
    large = [entry for entry in corpus.entries() if entry.rows == entry.cols and entry.nnz > least_nonzeros]
    if part == "definite":
        return [entry for entry in large if entry.spd]
    if part == "pattern":
        return [entry for entry in large if entry.symmetric and not entry.spd and "graph" not in entry.kind]
    return large


def system(matrix: SparseMatrix, part: str) -> SparseMatrix:
    """Make the matrix of the linear system.

    Returns:
        The stored matrix for the part "definite", else `dominant`.

    Raises:
        Unsupported: part "pattern", and the matrix has values, or zeros on its diagonal.
    """
    pattern = matrix.pattern
    if part == "definite":
        return matrix.astype("float64")
    if part == "pattern":
        if matrix.values.min(initial=1) != matrix.values.max(initial=1):
            raise Unsupported("it has values, but is not known to be positive definite")
        if (pattern.row_ids() == pattern.indices).sum() < pattern.rows:
            raise Unsupported("its diagonal is not stored: it is not the matrix of a linear system")
    return dominant(pattern)


def dominant(pattern: Pattern) -> SparseMatrix:
    """Give a square pattern the values of its graph's Laplacian plus the identity: strictly diagonally dominant.

    Stored or not, the diagonal is 1 plus the number of other nonzeros in the row, each of which is -1.
    """
    rows, columns = pattern.row_ids(), pattern.indices
    other = rows != columns
    diagonal = np.arange(pattern.rows, dtype=np.int32)
    whole = Pattern.from_coo(np.concatenate([rows[other], diagonal]), np.concatenate([columns[other], diagonal]),
                             pattern.shape)
    values = np.full(whole.nnz, -1.0)
    values[whole.row_ids() == whole.indices] = whole.row_lengths()
    return SparseMatrix(whole, values, np.float64)


@dataclass(frozen=True)
class TwoSteps:
    """A call that makes two steps.

    Args:
        reached: returns the iterate (n, columns) after the calls so far.
    """

    call: Callable[[], object]
    reached: Callable[[], np.ndarray]


def own_steps(solver: JacobiSolver, sweeps: Sweeps) -> TwoSteps:
    """Bind our solver, including the change between iterates."""
    return TwoSteps(sweeps.advance, lambda: solver.numbering.unpermute(sweeps.latest))


def same_tiles(solver: JacobiSolver, constant: np.ndarray) -> TwoSteps:
    """Bind the numbering and the tiles of a fused solver without fusion."""
    executor, matrix = solver.plan.executor, solver.numbering.matrix
    unfused = replace(executor, schedule=separated(executor.schedule, matrix.pattern))
    return own_steps(solver, Sweeps(unfused, matrix, solver.numbering.permute(constant)))


def baseline_steps(name: str, matrix: SparseMatrix, constant: np.ndarray, *, threads: int) -> TwoSteps:
    """Bind x -> M x + g of another library, twice; unlike ours it does not check convergence.

    Args:
        matrix: M (n, n).
        constant: g (n, columns).

    Raises:
        Unsupported: the library is not installed.
    """
    return {"scipy": _scipy, "torch": _torch, "mkl": _mkl}[name](matrix, constant, threads)


def _scipy(matrix: SparseMatrix, constant: np.ndarray, threads: int) -> TwoSteps:
    """Bind SciPy, which allocates every product and runs on one thread."""
    m, state = matrix.to_scipy(), [np.zeros_like(constant)]

    def call() -> None:
        for _ in range(2):
            product = m @ state[0]
            product += constant
            state[0] = product

    return TwoSteps(call, lambda: state[0])


def _torch(matrix: SparseMatrix, constant: np.ndarray, threads: int) -> TwoSteps:
    """Bind torch.addmm into preallocated arrays."""
    import torch

    from sparloom.baselines import torch_csr

    torch.set_num_threads(threads)
    m, g = torch_csr(matrix), torch.from_numpy(constant)
    x, y = torch.zeros_like(g), torch.zeros_like(g)

    def call() -> None:
        with torch.inference_mode():
            torch.addmm(g, m, x, out=y)
            torch.addmm(g, m, y, out=x)

    return TwoSteps(call, x.numpy)


def _mkl(matrix: SparseMatrix, constant: np.ndarray, threads: int) -> TwoSteps:
    """Bind MKL's inspector-executor routines; they add to the result, so g is copied first."""
    from sparloom.baselines import mkl_spmm

    x, y = np.zeros_like(constant), np.zeros_like(constant)
    first = mkl_spmm(matrix, x, y, threads=threads, add=True)
    second = mkl_spmm(matrix, y, x, threads=threads, add=True)

    def call() -> None:
        np.copyto(y, constant)
        first()
        np.copyto(x, constant)
        second()

    return TwoSteps(call, lambda: x)


def decide_jacobi(bench: "BenchJacobi", matrix: SparseMatrix, *, definite: bool) -> list[Row]:
    """Decide the best program and the best of each kind; return a row with the cost of each decision."""
    rows = []
    relaxation = converging_relaxation(matrix) if definite else 1.0
    with pinned(bench.threads):
        for method in OWN:
            start = time.perf_counter()
            solver = _solver(bench, matrix, method, relaxation, replay_only=False)
            rows.append({"method": method, "decision_seconds": time.perf_counter() - start, "relaxation": relaxation,
                         "choice": _describe(solver), "reason": solver.plan.decision.reason})
    return rows


def score_jacobi(bench: "BenchJacobi", matrix: SparseMatrix, decided: list[Row]) -> list[Row]:
    """Check that all methods compute the same iterates, time two steps of each in turn, and solve the system.

    Raises:
        RuntimeError: the cache has another choice than was decided.
    """
    relaxation = decided[0]["relaxation"]
    with pinned(bench.threads), ThreadpoolController().limit(limits=1, user_api="blas"):
        b = np.random.default_rng(bench.seed).normal(size=(matrix.pattern.rows, bench.columns))
        solvers = {method: _solver(bench, matrix, method, relaxation, replay_only=True) for method in OWN}
        for row in decided:
            if row["choice"] != _describe(solvers[row["method"]]):
                raise RuntimeError(f"{row['method']}: the decision was {row['choice']}, the cache has another choice")
        same = _describe(solvers["auto"]) == _describe(solvers["unfused"])
        methods, rows = _methods(bench, solvers, b)
        _check(methods)
        timed = {name: method.call for name, method in methods.items() if not (same and name == "auto")}
        taken = interleaved(timed, bench.timing, threads=bench.threads, serial=SERIAL)
        if same:
            taken["auto"] = taken["unfused"]
        methods.clear()
        solved = _solved(bench, solvers, b, same=same)
        for name, measurement in taken.items():
            row = {"method": name, "same": same, **_seconds(measurement), **solved.get(name, {})}
            if name in solvers:
                schedule = solvers[name].plan.executor.schedule
                row |= {"fused_rows": schedule.fused / max(1, matrix.pattern.rows),
                        "build_seconds": schedule.build_seconds}
            rows.append(row)
    return rows


def _solver(
    bench: "BenchJacobi", matrix: SparseMatrix, method: str, relaxation: float, *, replay_only: bool,
) -> JacobiSolver:
    return JacobiSolver(matrix, bench.columns, **OWN[method], relaxation=relaxation, threads=bench.threads,
                        cache=bench.cache, replay_only=replay_only)


def _describe(solver: JacobiSolver) -> str:
    return json.dumps({"numbering": solver.numbering.name, **asdict(solver.plan.choice)})


def _methods(
    bench: "BenchJacobi", solvers: dict[str, JacobiSolver], b: np.ndarray,
) -> tuple[dict[str, TwoSteps], list[Row]]:
    """Bind all methods that can run; return rows with reasons for the others."""
    iteration = solvers["auto"].iteration
    constant = iteration.constant(b)
    made, rows = {name: own_steps(solver, solver.sweeps(b)) for name, solver in solvers.items()}, []
    makers = {"separated": lambda: same_tiles(solvers["fused"], constant)}
    for name in BASELINES:
        makers[name] = lambda name=name: baseline_steps(name, iteration.matrix, constant, threads=bench.threads)
    for name, make in makers.items():
        try:
            made[name] = make()
        except (ImportError, Unsupported) as error:
            rows.append({"method": name, "failure": str(error)})
    return made, rows


def _check(methods: dict[str, TwoSteps]) -> None:
    expected: np.ndarray | None = None
    for name, method in methods.items():
        for _ in range(CHECKED):
            method.call()
        reached = method.reached()
        if expected is None:
            expected = reached.copy()
        error = np.abs(reached - expected).max(initial=0)
        if not error <= 1e-12 * np.abs(expected).max(initial=1):
            raise AssertionError(f"{name} is {error:.2e} away from the iterate of the first method")


def _solved(
    bench: "BenchJacobi", solvers: dict[str, JacobiSolver], b: np.ndarray, *, same: bool,
) -> dict[str, Row]:
    """Solve by the chosen and by the unfused program; steps must agree up to rounding at the tolerance."""
    found: dict[str, Row] = {}
    steps: np.ndarray | None = None
    for name in ("unfused", "auto"):
        if same and name == "auto":
            found[name] = found["unfused"]
            continue
        start = time.perf_counter()
        result = solvers[name].solve(b, tolerance=bench.tolerance, max_iterations=bench.most_steps)
        spent = time.perf_counter() - start
        found[name] = {
            "solve_seconds": spent, "steps_least": int(result.iterations.min()),
            "steps_most": int(result.iterations.max()), "converged": int(result.converged.sum()),
            "diverged": int(result.diverged.sum()), "residual_most": float(result.residuals.max())}
        if steps is not None and (np.abs(steps - result.iterations) > 2).any():
            raise AssertionError("fused and unfused solvers take different numbers of steps")
        steps = result.iterations
    return found


def _seconds(measurement: Measurement) -> Row:
    low, middle, high = np.quantile(measurement.seconds, (0.25, 0.5, 0.75)).tolist()
    return {"seconds": middle, "seconds_low": low, "seconds_high": high, "repetitions": len(measurement.seconds),
            "stolen": measurement.stolen}


@dataclass(frozen=True)
class BenchJacobi:
    """Time two steps of Jacobi's method on real and generated systems, and solve them, fused and not.

    One process decides for every system the best unfused, fused and overall program; another finds these decisions in
    the cache, checks that all methods compute the same iterates and times them in turn. Finished systems are journaled,
    so an interrupted run continues if commit and settings are unchanged.

    Args:
        corpus: matrices of the parts "definite" and "pattern", see `jacobi_set`.
        columns: number of right-hand sides.
        least_nonzeros: lower bound of the nonzeros of a matrix.
        tolerance, most_steps: limits of the solutions; solutions that need more steps are not finished.
        seed: seed of right-hand sides and of the bootstrap.
    """

    corpus: Corpus
    anchors: Corpus
    parts: Sequence[str]
    columns: int
    threads: int
    timing: TimingProtocol
    least_nonzeros: int
    tolerance: float
    most_steps: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and the figure; return geometric means of ratios, with bounds."""
        keep_threads_awake()
        entries = {System(part, entry.name): entry for part in self.parts for entry in self._entries(part)}
        planned = {" ".join(system): {" ".join(system): system} for system in entries}
        steps = CaseSteps(self._folder, dict.fromkeys(STEPS, planned), self.load, self.measure,
                          {" ".join(system): float(entry.nnz) for system, entry in entries.items()})
        steps.run()
        frame = pd.DataFrame(self._rows(steps, entries))
        return finish(out, self._folder, jacobi_metrics(frame, seed=self.seed),
                      lambda folder: draw_jacobi(frame, folder / "jacobi"), per_matrix=frame)

    def load(self, case: System) -> SparseMatrix:
        """Make the matrix of a system."""
        return system((self.anchors if case.part == "anchors" else self.corpus).load(case.matrix), case.part)

    def measure(self, step: str, case: System, matrix: SparseMatrix) -> list[Row]:
        """Decide or score one system."""
        if step == "decide":
            return decide_jacobi(self, matrix, definite=case.part == "definite")
        return score_jacobi(self, matrix, CaseJournal(self._folder / "decide.jsonl").rows()[" ".join(case)])

    def _entries(self, part: str) -> Sequence[MatrixEntry]:
        return jacobi_set(self.anchors if part == "anchors" else self.corpus, part, least_nonzeros=self.least_nonzeros)

    def _rows(self, steps: CaseSteps[System], entries: Mapping[System, MatrixEntry]) -> Iterator[Row]:
        """Yield one row per system and method, with facts of the matrix and of the decision."""
        decided = steps.done("decide")
        for case, row in steps.rows("score"):
            entry, chosen = entries[case], {each["method"]: each for each in decided[" ".join(case)]}
            yield {"part": case.part, "matrix": entry.name, "rows": entry.rows, "nnz": entry.nnz, "kind": entry.kind,
                   "columns": self.columns, "threads": self.threads, "relaxation": chosen["auto"]["relaxation"],
                   **row, **chosen.get(row["method"], {})}

    @cached_property
    def _folder(self) -> Path:
        return run_folder(self, corpora=[self.anchors if part == "anchors" else self.corpus for part in self.parts],
                          without=("anchors", "corpus"))

    @cached_property
    def cache(self) -> PlanCache:
        """Cache of decisions, in which another process finds them."""
        return PlanCache(self._folder / "plans")
