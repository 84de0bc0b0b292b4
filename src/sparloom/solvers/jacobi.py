"""Jacobi's method for many right-hand sides, with two steps fused.

Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §6.2: two iterations are unrolled into one
SpMM-SpMM in double precision, and convergence is tested per column. Beyond the paper: relaxation, right-hand sides
added inside the kernels, removal of converged columns, and renumbering of the unknowns where it pays off.
"""

import logging
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from sparloom.measure import checked_threads
from sparloom.solvers.iteration import JacobiIteration, checked_right_hand_sides, is_positive, system_diagonal
from sparloom.solvers.matrix_powers import MatrixPowers
from sparloom.solvers.sweeps import NUMBERINGS, BlockedSweeps, Numbering, SweepPlanner, Sweeps
from sparloom.sparse import SparseMatrix
from sparloom.tuning import Fuse, PairPlan, PlanCache

WIDER_TYPES = {"float32": np.float64, "float64": np.longdouble}
ROUNDING = 8  # upper bound of the rounding error of a residual, in ulps of the terms of its sum
DIVERGENCE_LIMIT = 1e6  # residual, relative to that of x = 0, above which a column has diverged
SAFE_EXPONENTS = 0.4  # share of a type's exponents for which squares in `sweeps` neither over- nor underflow
RANGE_SHARE = 1e-3  # share of a type's range above which a solution is checked for infinities
EXACT_EXPONENTS = 60  # multiplying by 2^e is done in place for |e| below this
RECHECK_SHARE = 0.9  # share of its residual at which a column is checked again if the exact residual was too large
COMPACT_SHARE = 0.75  # converged columns are removed if at most this share remains
LINE_BYTES = 64  # rows are narrowed to whole cache lines

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JacobiResult:
    """Solution and status of each column.

    Args:
        solution: (n, columns).
        iterations: (columns,) int64, number of steps from x = 0 to `solution`, which is even.
        residuals: (columns,) ‖D⁻¹(b − A x)‖₂ / ‖D⁻¹b‖₂ of `solution`, where D is the diagonal of A; 0 where b = 0. It
            is recomputed in a wider type where rounding could hide that it exceeds the tolerance.
        converged: (columns,) bool, the residual is within the tolerance; always false if `dtype` is too coarse for the
            tolerance.
        diverged: (columns,) bool, the residual grew without bounds, so that the method does not solve this system. A
            smaller relaxation may help if A is symmetric positive definite.
    """

    solution: np.ndarray
    iterations: np.ndarray
    residuals: np.ndarray
    converged: np.ndarray
    diverged: np.ndarray


class JacobiSolver:
    """Solves A X = B for one A and many B with the same number of columns; planning and inspection happen once.

    Args:
        matrix: A (n, n), without zeros on the diagonal.
        columns: number of columns of B.
        fuse: fuse two steps ("always"), do not ("never"), or choose the faster ("auto"). For one numbering, the
            iterates are the same to the bit.
        numbering: order of the unknowns in memory: "natural", as in A; "bandwidth", by reverse Cuthill-McKee, which
            improves locality and lets tiles fuse more; or the faster one ("auto", which is "natural" for fuse="never").
            Arguments and results are always in the order of A.
        relaxation: w in x + w D⁻¹ (b − A x); 1 is Jacobi's method itself. See `JacobiIteration`.
        dtype: type of the iterates and of M, float64 or float32; A and B are not rounded.
        threads: number of threads (default: all processors available to this process).
        cache: cache of decisions (default: that of this user).
        replay_only: use cached decisions only.
        blocked_steps: take so many steps, an even number, for each reading of M where that is faster, see
            `MatrixPowers`; for few columns. 0: two fused steps. The residual of an iterate is then a pass over two
            iterates, and steps beyond the last one are computed in vain.

    Raises:
        TypeError: A is not a `SparseMatrix`.
        ValueError: A is not square, holds an infinity or NaN, or has a zero on its diagonal; or an argument is not one
            of the above.
        NotDecided: `replay_only` is set, and the cache lacks a decision.
    """

    def __init__(
        self, matrix: SparseMatrix, columns: int, *, fuse: Fuse = "auto", numbering: str = "auto",
        relaxation: float = 1.0, dtype: DTypeLike = "float64", threads: int | None = None,
        cache: PlanCache | None = None, replay_only: bool = False, blocked_steps: int = 0,
    ) -> None:
        columns, steps = operator.index(columns), operator.index(blocked_steps)
        if steps < 0 or steps % 2:
            raise ValueError(f"blocked_steps={steps}: give an even number of steps, or 0 for fused ones")
        if columns < 1:
            raise ValueError(f"{columns} right-hand sides: give at least 1")
        if fuse not in get_args(Fuse):
            raise ValueError(f"fuse={fuse!r}: give \"auto\", \"never\" or \"always\"")
        if numbering not in ("auto", *NUMBERINGS):
            raise ValueError(f"numbering {numbering!r} is not one of auto, {', '.join(NUMBERINGS)}")
        if isinstance(matrix, SparseMatrix):
            matrix = matrix.astype(np.float64)  # its file may hold more digits than float32
        self.iteration = JacobiIteration.of(matrix, relaxation=relaxation, dtype=dtype)
        self.shape = (matrix.pattern.rows, columns)
        self._exact = _ExactResiduals(matrix, self.iteration)
        self._blocked: tuple[MatrixPowers, int] | None = None
        if steps:
            m = self.iteration.matrix
            self._blocked = MatrixPowers(m, k=steps, columns=columns, threads=threads), steps
            self._numbering = Numbering.of("natural", m)
            return
        planner = SweepPlanner(
            self.iteration.matrix, columns, threads=checked_threads(threads),
            cache=PlanCache.of_this_user() if cache is None else cache, replay_only=replay_only)
        if numbering == "auto" and fuse != "never":
            self._planned = planner.fastest(fuse)
        else:
            self._planned = planner.plan(fuse, "natural" if numbering == "auto" else numbering)
        self._numbering = self._planned.numbering

    @property
    def numbering(self) -> Numbering:
        """The order of the unknowns in memory."""
        return self._numbering

    @property
    def plan(self) -> PairPlan:
        """The plan for two steps.

        Raises:
            ValueError: the solver has `blocked_steps`, and takes no two steps.
        """
        if self._blocked is not None:
            raise ValueError(f"this solver takes {self._blocked[1]} steps at a time: there is no plan for two")
        return self._planned.plan

    def sweeps(self, right_hand_sides: np.ndarray) -> Sweeps | BlockedSweeps:
        """Return the bare iteration from x = 0, two steps at a time, with rows in the order of `numbering`.

        Args:
            right_hand_sides: B (n, columns).

        Raises:
            TypeError: B does not hold real numbers.
            ValueError: B has another shape, holds an infinity or NaN, or is so large or small that the norms returned
                by `Sweeps.advance` would over- or underflow; `solve` accepts such a B.
        """
        b = checked_right_hand_sides(right_hand_sides, self.shape)
        _, exponents = self.iteration.scaled_constant(b)
        limit = int(SAFE_EXPONENTS * np.finfo(self.iteration.matrix.dtype).maxexp)
        outside = np.abs(exponents) > limit
        if outside.any():
            column = int(np.argmax(outside))
            raise ValueError(f"right-hand side {column}, divided by the diagonal, is of size 2^{exponents[column]}: "
                             f"bare sweeps in {self.iteration.matrix.dtype} take 2^-{limit} to 2^{limit}; scale it, or "
                             "use solve")
        return self._sweeps(self.iteration.constant(b))

    def _sweeps(self, constant: np.ndarray) -> Sweeps | BlockedSweeps:
        constant = constant.astype(self.iteration.matrix.dtype, copy=False)
        if self._blocked is not None:
            return BlockedSweeps(self._blocked[0], constant, self._blocked[1])
        return Sweeps(self.plan.executor, self.numbering.matrix, self.numbering.permute(constant))

    def solve(
        self, right_hand_sides: np.ndarray, *, tolerance: float = 1e-8, max_iterations: int = 1000,
    ) -> JacobiResult:
        """Iterate from x = 0 until each column has converged, diverged or reached the maximum number of steps.

        The residual of every second iterate costs no extra pass, since it is the change in the next step. A column
        stops at the first such iterate within the tolerance. Stopped columns are removed from the arrays once they are
        a quarter of all.

        Args:
            right_hand_sides: B (n, columns).
            tolerance: limit of the residual, see `JacobiResult`.
            max_iterations: maximum number of steps, rounded up to an even number.

        Raises:
            TypeError: B does not hold real numbers.
            ValueError: B has another shape, holds an infinity or NaN, or D⁻¹b overflows `dtype`; the tolerance
                is not a finite number above 0, or there are no iterations.
        """
        _check_bounds(tolerance, max_iterations)
        b = checked_right_hand_sides(right_hand_sides, self.shape)
        constant, exponents = self.iteration.scaled_constant(b)
        self._check_fits(exponents)
        sweeps = self._sweeps(constant)
        del constant
        columns = self.shape[1]
        result = JacobiResult(np.zeros(self.shape, self.iteration.matrix.dtype), np.zeros(columns, np.int64),
                              np.zeros(columns), *(np.zeros(columns, bool) for _ in range(2)))
        indices = np.arange(columns)  # column of B for each column of the arrays
        active, thresholds, x_norms = np.ones(columns, bool), np.full(columns, tolerance), np.zeros(columns)
        for steps in range(0, max_iterations + 2, 2):
            changes = sweeps.advance()
            if steps == 0:
                lengths = np.where(changes > 0, changes, 1)  # x = 0, so that the change is g
            with np.errstate(invalid="ignore", over="ignore"):
                residuals = changes / lengths[indices]
            residuals[np.isnan(residuals)] = np.inf
            x_norms[indices] += 2 * residuals  # an upper bound of ‖x‖ / ‖g‖
            ended = (residuals <= thresholds[indices]) | (residuals > DIVERGENCE_LIMIT) | (steps >= max_iterations)
            stopped = active & ended
            if stopped.any():
                stopping, found = indices[stopped], residuals[stopped]
                x = _scale_columns(self.numbering.unpermute(sweeps.current[:, stopped]), exponents[stopping])
                exact = self._exact_residuals(found, tolerance, b=b, x=x, columns=stopping, x_norms=x_norms[stopping],
                                              exponents=exponents[stopping])
                # more steps do not help where the exact residual is more than twice that of the iteration
                more = (found <= tolerance) & (exact > tolerance) & (exact <= 2 * found) & (steps < max_iterations)
                thresholds[stopping[more]] = RECHECK_SHARE * found[more]
                result.solution[:, stopping] = x
                result.iterations[stopping], result.residuals[stopping] = steps, exact
                result.converged[stopping], result.diverged[stopping] = exact <= tolerance, found > DIVERGENCE_LIMIT
                active[stopped] = more
                if not active.any():
                    break
                kept = self._columns_to_keep(active)
                if kept is not None:
                    sweeps.select_columns(kept)
                    indices, active = indices[kept], active[kept]
        _warn(result, tolerance, max_iterations)
        return result

    def _exact_residuals(
        self, found: np.ndarray, tolerance: float, *, b: np.ndarray, x: np.ndarray, columns: np.ndarray,
        x_norms: np.ndarray, exponents: np.ndarray,
    ) -> np.ndarray:
        """Recompute the residuals of uncertain columns of B; infinity where the solution overflows."""
        uncertain = np.flatnonzero(self._exact.uncertain(found, tolerance, x_norms=x_norms, exponents=exponents))
        exact = found.copy()
        if uncertain.size:
            exact[uncertain] = self._exact.of(b[:, columns[uncertain]], x[:, uncertain])
        near_limit = np.flatnonzero(np.exp2(exponents - float(np.finfo(x.dtype).maxexp)) * (1 + x_norms) > RANGE_SHARE)
        exact[near_limit[~np.isfinite(x[:, near_limit]).all(axis=0)]] = np.inf
        return exact

    def _check_fits(self, exponents: np.ndarray) -> None:
        """Reject B whose first iterate overflows the type."""
        dtype = self.iteration.matrix.dtype
        beyond = exponents > np.finfo(dtype).maxexp
        if beyond.any():
            column = int(np.argmax(beyond))
            remedy = "give dtype=\"float64\", or scale it" if dtype.itemsize < 8 else "scale it"
            raise ValueError(f"right-hand side {column}, divided by the diagonal, is of size 2^{exponents[column]}, "
                             f"which {dtype} does not hold: {remedy}")

    def _columns_to_keep(self, active: np.ndarray) -> np.ndarray | None:
        """Return the columns to continue with, padded to whole cache lines by stopped ones; None to keep all."""
        lanes = LINE_BYTES // self.iteration.matrix.dtype.itemsize
        count = -(-int(active.sum()) // lanes) * lanes
        if count > COMPACT_SHARE * active.size:
            return None
        return np.sort(np.argsort(~active, kind="stable")[:count])


def jacobi(
    matrix: SparseMatrix, right_hand_sides: np.ndarray, *, tolerance: float = 1e-8, max_iterations: int = 1000,
    fuse: Fuse = "auto", numbering: str = "auto", relaxation: float = 1.0, dtype: DTypeLike = "float64",
    threads: int | None = None, cache: PlanCache | None = None, blocked_steps: int = 0,
) -> JacobiResult:
    """Solve A X = B by Jacobi's method with two steps fused; to solve for several B, use `JacobiSolver`.

    Args:
        matrix: A (n, n), without zeros on the diagonal; the method converges if A is strictly diagonally dominant.
        right_hand_sides: B (n, columns).
        tolerance: limit of ‖D⁻¹(b − A x)‖₂ / ‖D⁻¹b‖₂ for each column.
        max_iterations: maximum number of steps.
        fuse, numbering, relaxation, dtype, threads, cache, blocked_steps: as for `JacobiSolver`.

    Raises:
        TypeError: A is not a `SparseMatrix`, or B does not hold real numbers.
        ValueError: A is not square, its diagonal holds a zero, A or B holds an infinity or NaN, or shapes do not match.
    """
    shape = np.shape(right_hand_sides)
    if len(shape) != 2:
        raise ValueError(f"right-hand sides of shape {shape}: give (n, columns), b[:, None] for one")
    _check_bounds(tolerance, max_iterations)
    b = checked_right_hand_sides(right_hand_sides, (system_diagonal(matrix).size, shape[1]))
    solver = JacobiSolver(matrix, shape[1], fuse=fuse, numbering=numbering, relaxation=relaxation, dtype=dtype,
                          threads=threads, cache=cache, blocked_steps=blocked_steps)
    return solver.solve(b, tolerance=tolerance, max_iterations=max_iterations)


class _ExactResiduals:
    """Recomputes residuals in a wider type where rounding may hide that a column has not converged.

    One product in the wider type costs several sweeps, so it is computed only for uncertain columns: those whose
    tolerance is near the precision of the iteration, or whose solution is near the limits of its range.

    Args:
        matrix: A (n, n).
    """

    def __init__(self, matrix: SparseMatrix, iteration: JacobiIteration) -> None:
        self._a, self._iteration = matrix, iteration
        self._limits = np.finfo(iteration.matrix.dtype)
        self._wider = WIDER_TYPES[iteration.matrix.dtype.name]
        m = iteration.matrix
        sums = np.bincount(m.pattern.row_ids(), np.abs(m.values), m.pattern.rows)
        self._growth = 1 + sums.max(initial=0)

    def __reduce__(self) -> tuple[type["_ExactResiduals"], tuple[SparseMatrix, JacobiIteration]]:
        """Copy and pickle only A and the iteration, because NumPy does not pickle np.finfo."""
        return _ExactResiduals, (self._a, self._iteration)

    def uncertain(
        self, residuals: np.ndarray, tolerance: float, *, x_norms: np.ndarray, exponents: np.ndarray,
    ) -> np.ndarray:
        """Mark the columns whose exact residual may be on the other side of the tolerance, or below the rounding error.

        Args:
            residuals: (columns,) as computed by the iteration, relative to ‖g‖.
            x_norms: (columns,) upper bounds of ‖x‖ / ‖g‖.
            exponents: (columns,) exponents of the powers of two that scale the iterates at the end.
        """
        rounding = float(self._limits.eps) * (1 + self._growth * x_norms)
        with np.errstate(over="ignore", under="ignore"):
            rounding += np.ldexp(1.0, self._limits.minexp - self._limits.nmant - 1 - exponents)  # of subnormal results
            upper = np.hypot(residuals, ROUNDING * rounding) + rounding  # errors are nearly orthogonal to residuals
        return np.where(residuals <= tolerance, upper > tolerance, residuals < ROUNDING * rounding)

    def of(self, right_hand_sides: np.ndarray, solution: np.ndarray) -> np.ndarray:
        """Compute ‖D⁻¹(b − A x)‖₂ / ‖D⁻¹b‖₂.

        Args:
            right_hand_sides, solution: (n, columns).

        Returns:
            (columns,) float64; infinity where the solution is not finite, 0 where b and x are 0.
        """
        constant, exponents = self._iteration.scaled_constant(right_hand_sides, self._wider)
        constant /= self._iteration.relaxation
        x = np.ldexp(solution.astype(self._wider), -exponents)
        with np.errstate(invalid="ignore", over="ignore"):
            residual = constant - self._scaled @ x
            lengths = np.sqrt((constant * constant).sum(axis=0))
            found = np.sqrt((residual * residual).sum(axis=0)) / np.where(lengths > 0, lengths, 1)
        return np.where(np.isfinite(found), found, np.inf).astype(np.float64)

    @cached_property
    def _scaled(self) -> scipy.sparse.csr_array:
        """D⁻¹ A."""
        a = self._a.to_scipy()
        values = a.data.astype(self._wider) / self._iteration.diagonal.astype(self._wider)[self._a.pattern.row_ids()]
        return scipy.sparse.csr_array((values, a.indices, a.indptr), shape=a.shape)


def _check_bounds(tolerance: float, max_iterations: int) -> None:
    try:
        fit = is_positive(tolerance, "tolerance") and operator.index(max_iterations) > 0
    except TypeError:
        raise TypeError(f"tolerance {tolerance!r} and {max_iterations!r} iterations: give a number and an integer, "
                        "both above 0") from None
    if not fit:
        raise ValueError(f"tolerance {tolerance} and {max_iterations} iterations: both must be above 0 and finite")


def _scale_columns(x: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Multiply columns by powers of two, in place if the exponents are small."""
    if (np.abs(exponents) < EXACT_EXPONENTS).all():
        return np.multiply(x, np.ldexp(x.dtype.type(1), exponents), out=x)
    with np.errstate(over="ignore"):
        return np.ldexp(x, exponents)


def _warn(result: JacobiResult, tolerance: float, max_iterations: int) -> None:
    """Log the columns that stopped without a solution before the maximum number of steps."""
    if result.diverged.any():
        first = int(np.argmax(result.diverged))
        log.warning("Jacobi's method diverges in %d of %d columns, the first of them %d: its residual is %.1e times "
                    "that of x = 0 after %d steps. Give a smaller relaxation if the matrix is symmetric positive "
                    "definite, or take another method", result.diverged.sum(), result.diverged.size, first,
                    result.residuals[first], result.iterations[first])
    stopped = ~result.converged & ~result.diverged & (result.iterations < max_iterations)
    if stopped.any():
        first = int(np.argmax(stopped))
        log.warning("Jacobi's method comes no nearer in %s to %d of %d solutions, the first of them %d: its residual "
                    "is %.1e after %d steps, and the tolerance is %.1e. Give a larger tolerance, dtype=\"float64\", or "
                    "other exponents if the solution is near the ends of the type's range", result.solution.dtype,
                    stopped.sum(), stopped.size, first, result.residuals[first], result.iterations[first], tolerance)
