"""Jacobi's method for many right-hand sides, two steps fused.

Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §6.2: two iterations are unrolled and computed as
one SpMM-SpMM in double precision; convergence is told column by column. Beyond the paper: relaxation, right-hand sides
added inside the kernels, columns that have converged are taken out of the work, unknowns are renumbered where that
pays.
"""

import logging
import os
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import DTypeLike

from sparloom.dispatch import Fuse, PairPlan, PlanCache
from sparloom.solvers.iteration import JacobiIteration
from sparloom.solvers.numbering import NUMBERINGS, Numbering
from sparloom.solvers.planning import Planner
from sparloom.solvers.sweeps import Sweeps
from sparloom.sparse import SparseMatrix

__all__ = ["JacobiResult", "JacobiSolver", "jacobi"]

DIVERGED = 1e6  # residual, relative to that of x = 0, beyond which a column is given up
WORTH = 0.75    # share of the columns that may be left before the arrays are narrowed
LINE = 64       # bytes: rows are narrowed to whole cache lines

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JacobiResult:
    """What came of every column.

    Args:
        solution: (n, columns).
        iterations: (columns,) int64, the steps from 0 to `solution`; even, since two are made at a time.
        residuals: (columns,) ‖D⁻¹(b − A x)‖₂ / ‖D⁻¹b‖₂ of `solution`, D being the diagonal of A; 0 where b = 0.
        converged: (columns,) bool, the residual is within the tolerance.
        diverged: (columns,) bool, the residual grew without bounds: the method does not solve this system. A smaller
            relaxation may, if A is symmetric positive definite.
    """

    solution: np.ndarray
    iterations: np.ndarray
    residuals: np.ndarray
    converged: np.ndarray
    diverged: np.ndarray


class JacobiSolver:
    """Solves A X = B for one A and any B of as many columns; what is decided and inspected is so once.

    Args:
        matrix: A (n, n), without zeros on the diagonal.
        columns: of B.
        fuse: two steps as one ("always"), one after the other ("never"), or what is faster ("auto"); the iterates are
            the same, to the bit in one numbering.
        numbering: of the unknowns in memory: "natural", as A has them; "bandwidth", by reverse Cuthill-McKee, which
            brings neighbours together, so that tiles are closed and caches hold what is needed; or what is faster
            ("auto", which for fuse="never" is "natural"). Arguments and results are always in the order of A.
        relaxation: w in x + w / D (b − A x); 1 is Jacobi's method itself. See `JacobiIteration`.
        dtype: of all values, float64 or float32.
        threads: all processors that this process may use unless given.
        cache: where decisions are kept; the folder of this user unless given.
        replay_only: decide nothing.

    Raises:
        ValueError: A is not square, its diagonal holds a zero, or an argument is not one of the above.
        NotDecided: `replay_only`, and the cache lacks a decision.
    """

    def __init__(
        self, matrix: SparseMatrix, columns: int, *, fuse: Fuse = "auto", numbering: str = "auto",
        relaxation: float = 1.0, dtype: DTypeLike = "float64", threads: int | None = None,
        cache: PlanCache | None = None, replay_only: bool = False,
    ) -> None:
        if columns < 1:
            raise ValueError(f"{columns} right-hand sides: give at least 1")
        if fuse not in get_args(Fuse):
            raise ValueError(f"fuse={fuse!r}: give \"auto\", \"never\" or \"always\"")
        if numbering not in ("auto", *NUMBERINGS):
            raise ValueError(f"numbering {numbering!r} is not one of auto, {', '.join(NUMBERINGS)}")
        matrix = matrix.astype(np.float64)  # from a file it may have more digits than its float32 values
        self.iteration = JacobiIteration.of(matrix, relaxation=relaxation, dtype=dtype)
        self.shape = (matrix.pattern.rows, columns)
        planner = Planner(
            self.iteration.matrix, columns, threads=len(os.sched_getaffinity(0)) if threads is None else threads,
            cache=PlanCache.of_this_user() if cache is None else cache, replay_only=replay_only)
        if numbering == "auto" and fuse != "never":
            self._planned = planner.fastest(fuse)
        else:
            self._planned = planner.planned(fuse, "natural" if numbering == "auto" else numbering)

    @property
    def numbering(self) -> Numbering:
        """In which order the unknowns lie in memory."""
        return self._planned.numbering

    @property
    def plan(self) -> PairPlan:
        """How two steps are computed."""
        return self._planned.plan

    def sweeps(self, right_hand_sides: np.ndarray) -> Sweeps:
        """Give the bare iteration from x = 0, two steps at a time, rows in the order of `numbering`.

        Args:
            right_hand_sides: B (n, columns).

        Raises:
            ValueError: B has another shape, or holds what is no number.
        """
        b = np.asarray(right_hand_sides)
        if b.shape != self.shape:
            raise ValueError(f"right-hand sides of shape {b.shape}: this solver is for {self.shape}")
        finite = np.isfinite(b).all(axis=0)
        if not finite.all():
            raise ValueError(f"right-hand side {int(np.argmin(finite))} holds a value that is no finite number")
        constant = self.iteration.constant(b).astype(self.iteration.matrix.dtype, copy=False)
        return Sweeps(self.plan.executor, self.numbering.matrix, self.numbering.taken(constant))

    def solve(
        self, right_hand_sides: np.ndarray, *, tolerance: float = 1e-8, max_iterations: int = 1000,
    ) -> JacobiResult:
        """Iterate from 0 until every column has converged, diverged or made all its steps.

        The residual of every second iterate is known without further passes over the arrays: it is what the next step
        adds. A column rests at the first such iterate that is good enough; those that rest are taken out of the arrays
        when a quarter of the columns does.

        Args:
            right_hand_sides: B (n, columns).
            tolerance: of the residual, see `JacobiResult`.
            max_iterations: most steps of a column, rounded up to an even number.

        Raises:
            ValueError: as by `sweeps`; the tolerance is not above 0, or there are no iterations.
        """
        if not tolerance > 0 or max_iterations < 1:
            raise ValueError(f"tolerance {tolerance} and {max_iterations} iterations: both must be above 0")
        sweeps = self.sweeps(right_hand_sides)
        columns = self.shape[1]
        result = JacobiResult(np.zeros(self.shape, self.iteration.matrix.dtype), np.zeros(columns, np.int64),
                              np.zeros(columns), *(np.zeros(columns, bool) for _ in range(2)))
        places = np.arange(columns)  # column of B for each column in the arrays
        moving = np.ones(columns, bool)  # those of them that do not rest
        lengths = np.empty(0)
        for steps in range(0, max_iterations + 2, 2):
            changes = sweeps.advance()
            if steps == 0:
                lengths = np.where(changes > 0, changes, 1)  # x = 0: the change is g
            with np.errstate(invalid="ignore", over="ignore"):
                residuals = changes / lengths[places]
            converged, diverged = residuals <= tolerance, ~(residuals <= DIVERGED)
            rests = moving & (converged | diverged | (steps >= max_iterations))
            if rests.any():
                resting = places[rests]
                result.solution[:, resting] = self.numbering.given_back(sweeps.now[:, rests])
                result.iterations[resting], result.residuals[resting] = steps, residuals[rests]
                result.converged[resting], result.diverged[resting] = converged[rests], diverged[rests]
                moving &= ~rests
                if not moving.any():
                    break
                kept = self._worth_keeping(moving)
                if kept is not None:
                    sweeps.keep(kept)
                    places, moving = places[kept], moving[kept]
        _warn(result)
        return result

    def _worth_keeping(self, moving: np.ndarray) -> np.ndarray | None:
        """Name the columns to go on with, resting ones up to a whole cache line included; None for all."""
        lanes = LINE // self.iteration.matrix.dtype.itemsize
        count = -(-int(moving.sum()) // lanes) * lanes
        if count > WORTH * moving.size:
            return None
        return np.sort(np.argsort(~moving, kind="stable")[:count])


def jacobi(
    matrix: SparseMatrix, right_hand_sides: np.ndarray, *, tolerance: float = 1e-8, max_iterations: int = 1000,
    fuse: Fuse = "auto", numbering: str = "auto", relaxation: float = 1.0, dtype: DTypeLike = "float64",
    threads: int | None = None, cache: PlanCache | None = None,
) -> JacobiResult:
    """Solve A X = B by Jacobi's method, two steps fused; see `JacobiSolver`, which serves several B.

    Args:
        matrix: A (n, n), without zeros on the diagonal; the method converges if A is strictly diagonally dominant.
        right_hand_sides: B (n, columns).
        tolerance: of ‖D⁻¹(b − A x)‖₂ / ‖D⁻¹b‖₂, column by column.
        max_iterations: most steps of a column.
        fuse, numbering, relaxation, dtype, threads, cache: as of `JacobiSolver`.

    Raises:
        ValueError: A is not square, its diagonal holds a zero, shapes do not fit together, or B is not finite.
    """
    b = np.asarray(right_hand_sides)
    if b.ndim != 2:
        raise ValueError(f"right-hand sides of shape {b.shape}: give (n, columns), b[:, None] for one")
    solver = JacobiSolver(matrix, b.shape[1], fuse=fuse, numbering=numbering, relaxation=relaxation, dtype=dtype,
                          threads=threads, cache=cache)
    return solver.solve(b, tolerance=tolerance, max_iterations=max_iterations)


def _warn(result: JacobiResult) -> None:
    """Say that columns diverged: their solution is none."""
    if result.diverged.any():
        first = int(np.argmax(result.diverged))
        log.warning("Jacobi's method diverges in %d of %d columns, the first of them %d: its residual is %.1e times "
                    "that of x = 0 after %d steps. Give a smaller relaxation if the matrix is symmetric positive "
                    "definite, or take another method", result.diverged.sum(), result.diverged.size, first,
                    result.residuals[first], result.iterations[first])
