"""Decide and time one linear system of a bench of Jacobi's method: two steps, for two processes."""

import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from sparloom.errors import Unsupported
from sparloom.experiments.jacobi_methods import PEERS, SERIAL, TwoSteps, ours, peer, same_tiles
from sparloom.fusion import pinned
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import interleaved
from sparloom.solvers import JacobiSolver, converging_relaxation
from sparloom.sparse import SparseMatrix
from sparloom.tuning import PlanCache

__all__ = ["JacobiBench", "decide_jacobi", "score_jacobi"]

OWN = {  # method -> how it is planned
    "unfused": {"fuse": "never"}, "auto": {"fuse": "auto"}, "fused": {"fuse": "always"},
    "fused_natural": {"fuse": "always", "numbering": "natural"},
    "unfused_renumbered": {"fuse": "never", "numbering": "bandwidth"},
}
CHECKED = 3  # calls after which all methods must have come to the same iterate

Row = dict[str, Any]


@dataclass(frozen=True)
class JacobiBench:
    """What all systems have in common.

    Args:
        columns: right-hand sides.
        tolerance, most_steps: of the solutions.
        cache: of decisions; another process finds them there.
    """

    columns: int
    threads: int
    timing: TimingProtocol
    tolerance: float
    most_steps: int
    cache: PlanCache
    seed: int


def decide_jacobi(bench: JacobiBench, matrix: SparseMatrix, *, definite: bool) -> list[Row]:
    """Choose the best of all programs and the best of each kind; a row for each says what it took."""
    rows = []
    relaxation = converging_relaxation(matrix) if definite else 1.0
    with pinned(bench.threads):
        for method in OWN:
            start = time.perf_counter()
            solver = _solver(bench, matrix, method, relaxation, replay_only=False)
            rows.append({"method": method, "decision_seconds": time.perf_counter() - start, "relaxation": relaxation,
                         "choice": _describe(solver), "reason": solver.plan.decision.reason})
    return rows


def score_jacobi(bench: JacobiBench, matrix: SparseMatrix, decided: list[Row]) -> list[Row]:
    """Check that all methods make the same iterates, time two steps of each side by side, and solve the system.

    Raises:
        RuntimeError: another choice comes out of the cache than was decided.
        AssertionError: a method's iterate is another one.
    """
    relaxation = decided[0]["relaxation"]
    with pinned(bench.threads), ThreadpoolController().limit(limits=1, user_api="blas"):
        b = np.random.default_rng(bench.seed).normal(size=(matrix.pattern.rows, bench.columns))
        solvers = {method: _solver(bench, matrix, method, relaxation, replay_only=True) for method in OWN}
        for row in decided:
            if row["choice"] != _describe(solvers[row["method"]]):
                raise RuntimeError(f"{row['method']}: decided was {row['choice']}, the cache has another choice")
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
    bench: JacobiBench, matrix: SparseMatrix, method: str, relaxation: float, *, replay_only: bool,
) -> JacobiSolver:
    return JacobiSolver(matrix, bench.columns, **OWN[method], relaxation=relaxation, threads=bench.threads,
                        cache=bench.cache, replay_only=replay_only)


def _describe(solver: JacobiSolver) -> str:
    """The choice as text."""
    return json.dumps({"numbering": solver.numbering.name, **solver.plan.choice.to_json()})


def _methods(
    bench: JacobiBench, solvers: dict[str, JacobiSolver], b: np.ndarray,
) -> tuple[dict[str, TwoSteps], list[Row]]:
    """Bind what can be; a row for each method that cannot says why."""
    iteration = solvers["auto"].iteration
    constant = iteration.constant(b)
    made, rows = {name: ours(solver, solver.sweeps(b)) for name, solver in solvers.items()}, []
    makers = {"separated": lambda: same_tiles(solvers["fused"], constant)}
    for name in PEERS:
        makers[name] = lambda name=name: peer(name, iteration.matrix, constant, threads=bench.threads)
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
    bench: JacobiBench, solvers: dict[str, JacobiSolver], b: np.ndarray, *, same: bool,
) -> dict[str, Row]:
    """Solve fused or not and by the unfused program; steps must agree, rounding at the tolerance aside."""
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
