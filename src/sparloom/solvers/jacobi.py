"""Residuals in a wider type, for columns of which rounding could hide that they have not converged.

Jacobi's method for many right-hand sides, two steps fused.

Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, §6.2: two iterations are unrolled and computed as
one SpMM-SpMM in double precision; convergence is told column by column. Beyond the paper: relaxation, right-hand sides
added inside the kernels, columns that have converged are taken out of the work, unknowns are renumbered where that
pays.
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
from sparloom.solvers.iteration import JacobiIteration, positive, real_numbers, solvable
from sparloom.solvers.sweeps import NUMBERINGS, Numbering, Planner, Sweeps
from sparloom.sparse import SparseMatrix
from sparloom.tuning import Fuse, PairPlan, PlanCache

__all__ = ["ExactResiduals", "JacobiResult", "JacobiSolver", "jacobi"]

WIDER = {"float32": np.float64, "float64": np.longdouble}
ROUNDING = 8  # rounding errors of a residual, in units of the last place of what is added up: more than there are


class ExactResiduals:
    """Tells when the residual of an iteration is in doubt, and computes it once more.

    One product in the wider type costs several sweeps, so it is made for columns in doubt only: those whose tolerance
    is near the precision of the iteration, and those whose solution is near the ends of its range.

    Args:
        matrix: A (n, n).
    """

    def __init__(self, matrix: SparseMatrix, iteration: JacobiIteration) -> None:
        self._a, self._iteration = matrix, iteration
        self._limits = np.finfo(iteration.matrix.dtype)
        self._wider = WIDER[iteration.matrix.dtype.name]
        m = iteration.matrix
        sums = np.bincount(m.pattern.row_ids(), np.abs(m.values), m.pattern.rows)
        self._growth = 1 + sums.max(initial=0)

    def __reduce__(self) -> tuple[type["ExactResiduals"], tuple[SparseMatrix, JacobiIteration]]:
        """Copy and pickle A and the iteration: NumPy does not pickle the limits of a type."""
        return ExactResiduals, (self._a, self._iteration)

    def doubts(
        self, residuals: np.ndarray, tolerance: float, *, way: np.ndarray, units: np.ndarray,
    ) -> np.ndarray:
        """Say where the exact residual may be on the other side of the tolerance, or is hidden by rounding.

        Args:
            residuals: (columns,) as the iteration computed them, relative to ‖g‖.
            way: (columns,) at least ‖x‖ / ‖g‖.
            units: (columns,), powers of two by which iterates are multiplied in the end.
        """
        rounding = float(self._limits.eps) * (1 + self._growth * way)
        with np.errstate(over="ignore", under="ignore"):
            rounding += np.ldexp(1.0, self._limits.minexp - self._limits.nmant - 1 - units)  # of subnormal results
            most = np.hypot(residuals, ROUNDING * rounding) + rounding  # errors lie across residuals, nearly
        return np.where(residuals <= tolerance, most > tolerance, residuals < ROUNDING * rounding)

    def of(self, right_hand_sides: np.ndarray, solution: np.ndarray) -> np.ndarray:
        """Compute ‖D⁻¹(b − A x)‖₂ / ‖D⁻¹b‖₂.

        Args:
            right_hand_sides, solution: (n, columns).

        Returns:
            (columns,) float64; infinity where the solution is not finite, 0 where b and x are.
        """
        constant, units = self._iteration.scaled_constant(right_hand_sides, self._wider)
        constant /= self._iteration.relaxation
        x = np.ldexp(solution.astype(self._wider), -units)
        with np.errstate(invalid="ignore", over="ignore"):
            rest = constant - self._scaled @ x
            lengths = np.sqrt((constant * constant).sum(axis=0))
            found = np.sqrt((rest * rest).sum(axis=0)) / np.where(lengths > 0, lengths, 1)
        return np.where(np.isfinite(found), found, np.inf).astype(np.float64)

    @cached_property
    def _scaled(self) -> scipy.sparse.csr_array:
        """D⁻¹ A."""
        a = self._a.to_scipy()
        values = a.data.astype(self._wider) / self._iteration.diagonal.astype(self._wider)[self._a.pattern.row_ids()]
        return scipy.sparse.csr_array((values, a.indices, a.indptr), shape=a.shape)


DIVERGED = 1e6  # residual, relative to that of x = 0, beyond which a column is given up
BARE = 0.4      # share of the exponents of a type within which squares in bare sweeps are safe
MARGIN = 1e-3   # share of a type's range that a solution may come to before it is looked at for infinities
PLAIN = 60      # powers of two below which products with them are taken as they are
NEARER = 0.9    # share of its last residual at which a column is looked at again that had not converged after all
WORTH = 0.75    # share of the columns that may be left before the arrays are narrowed
LINE = 64       # bytes: rows are narrowed to whole cache lines

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JacobiResult:
    """What came of every column.

    Args:
        solution: (n, columns).
        iterations: (columns,) int64, the steps from 0 to `solution`; even, since two are made at a time.
        residuals: (columns,) ‖D⁻¹(b − A x)‖₂ / ‖D⁻¹b‖₂ of `solution`, D being the diagonal of A; 0 where b = 0. As
            the iteration computed it, or, where rounding could hide that it is above the tolerance, in a wider type.
        converged: (columns,) bool, the residual is within the tolerance. Where `dtype` is too coarse for the tolerance
            this is false, however many steps are made.
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
        dtype: of the iterates and of M, float64 or float32; A and B are used as they are given.
        threads: all processors that this process may use unless given.
        cache: where decisions are kept; the folder of this user unless given.
        replay_only: decide nothing.

    Raises:
        TypeError: A is no `SparseMatrix`.
        ValueError: A is not square, holds an infinity or NaN or a zero on its diagonal, or an argument is not one of
            the above.
        NotDecided: `replay_only`, and the cache lacks a decision.
    """

    def __init__(
        self, matrix: SparseMatrix, columns: int, *, fuse: Fuse = "auto", numbering: str = "auto",
        relaxation: float = 1.0, dtype: DTypeLike = "float64", threads: int | None = None,
        cache: PlanCache | None = None, replay_only: bool = False,
    ) -> None:
        columns = operator.index(columns)
        if columns < 1:
            raise ValueError(f"{columns} right-hand sides: give at least 1")
        if fuse not in get_args(Fuse):
            raise ValueError(f"fuse={fuse!r}: give \"auto\", \"never\" or \"always\"")
        if numbering not in ("auto", *NUMBERINGS):
            raise ValueError(f"numbering {numbering!r} is not one of auto, {', '.join(NUMBERINGS)}")
        if isinstance(matrix, SparseMatrix):
            matrix = matrix.astype(np.float64)  # from a file it may have more digits than its float32 values
        self.iteration = JacobiIteration.of(matrix, relaxation=relaxation, dtype=dtype)
        self.shape = (matrix.pattern.rows, columns)
        self._exact = ExactResiduals(matrix, self.iteration)
        planner = Planner(
            self.iteration.matrix, columns, threads=checked_threads(threads),
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
            TypeError: B does not hold real numbers.
            ValueError: B has another shape, holds an infinity or NaN, or is so large or small that the lengths that
                `Sweeps.advance` gives would over- or underflow; `solve` takes such a B.
        """
        b = real_numbers(right_hand_sides, self.shape)
        _, units = self.iteration.scaled_constant(b)
        limit = int(BARE * np.finfo(self.iteration.matrix.dtype).maxexp)
        outside = np.abs(units) > limit
        if outside.any():
            column = int(np.argmax(outside))
            raise ValueError(f"right-hand side {column}, divided by the diagonal, is of size 2^{units[column]}: bare "
                             f"sweeps in {self.iteration.matrix.dtype} take 2^-{limit} to 2^{limit}; scale it, or use "
                             "solve")
        return self._sweeps(self.iteration.constant(b))

    def _sweeps(self, constant: np.ndarray) -> Sweeps:
        constant = constant.astype(self.iteration.matrix.dtype, copy=False)
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
            TypeError: B does not hold real numbers.
            ValueError: B has another shape, holds an infinity or NaN, or D⁻¹b does not fit into `dtype`; the tolerance
                is not a finite number above 0, or there are no iterations.
        """
        _check_bounds(tolerance, max_iterations)
        b = real_numbers(right_hand_sides, self.shape)
        constant, units = self.iteration.scaled_constant(b)
        self._check_fits(units)
        sweeps = self._sweeps(constant)
        del constant
        columns = self.shape[1]
        result = JacobiResult(np.zeros(self.shape, self.iteration.matrix.dtype), np.zeros(columns, np.int64),
                              np.zeros(columns), *(np.zeros(columns, bool) for _ in range(2)))
        places = np.arange(columns)  # column of B for each column in the arrays
        moving, goals, way = np.ones(columns, bool), np.full(columns, tolerance), np.zeros(columns)
        for steps in range(0, max_iterations + 2, 2):
            changes = sweeps.advance()
            if steps == 0:
                lengths = np.where(changes > 0, changes, 1)  # x = 0: the change is g
            with np.errstate(invalid="ignore", over="ignore"):
                residuals = changes / lengths[places]
            residuals[np.isnan(residuals)] = np.inf
            way[places] += 2 * residuals  # bounds ‖x‖ / ‖g‖
            rests = moving & ((residuals <= goals[places]) | (residuals > DIVERGED) | (steps >= max_iterations))
            if rests.any():
                resting, found = places[rests], residuals[rests]
                x = _in_units(self.numbering.given_back(sweeps.now[:, rests]), units[resting])
                exact = self._exact_where_in_doubt(
                    found, tolerance, b=b, x=x, columns=resting, way=way[resting], units=units[resting])
                # where the residual is more than twice what the iteration sees, more steps lead no further
                more = (found <= tolerance) & (exact > tolerance) & (exact <= 2 * found) & (steps < max_iterations)
                goals[resting[more]] = NEARER * found[more]
                result.solution[:, resting] = x
                result.iterations[resting], result.residuals[resting] = steps, exact
                result.converged[resting], result.diverged[resting] = exact <= tolerance, found > DIVERGED
                moving[rests] = more
                if not moving.any():
                    break
                kept = self._worth_keeping(moving)
                if kept is not None:
                    sweeps.keep(kept)
                    places, moving = places[kept], moving[kept]
        _warn(result, tolerance, max_iterations)
        return result

    def _exact_where_in_doubt(
        self, found: np.ndarray, tolerance: float, *, b: np.ndarray, x: np.ndarray, columns: np.ndarray,
        way: np.ndarray, units: np.ndarray,
    ) -> np.ndarray:
        """Replace residuals of some columns of B where rounding counts; infinite where the solution overflows."""
        doubted = np.flatnonzero(self._exact.doubts(found, tolerance, way=way, units=units))
        exact = found.copy()
        if doubted.size:
            exact[doubted] = self._exact.of(b[:, columns[doubted]], x[:, doubted])
        near_end = np.flatnonzero(np.exp2(units - float(np.finfo(x.dtype).maxexp)) * (1 + way) > MARGIN)
        exact[near_end[~np.isfinite(x[:, near_end]).all(axis=0)]] = np.inf
        return exact

    def _check_fits(self, units: np.ndarray) -> None:
        """Refuse B whose first iterate does not fit into the type."""
        dtype = self.iteration.matrix.dtype
        beyond = units > np.finfo(dtype).maxexp
        if beyond.any():
            column = int(np.argmax(beyond))
            remedy = "give dtype=\"float64\", or scale it" if dtype.itemsize < 8 else "scale it"
            raise ValueError(f"right-hand side {column}, divided by the diagonal, is of size 2^{units[column]}, which "
                             f"{dtype} does not hold: {remedy}")

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
        TypeError: A is no `SparseMatrix`, or B does not hold real numbers.
        ValueError: A is not square, its diagonal holds a zero, A or B holds an infinity or NaN, or shapes do not fit
            together.
    """
    shape = np.shape(right_hand_sides)
    if len(shape) != 2:
        raise ValueError(f"right-hand sides of shape {shape}: give (n, columns), b[:, None] for one")
    _check_bounds(tolerance, max_iterations)
    b = real_numbers(right_hand_sides, (solvable(matrix).size, shape[1]))
    solver = JacobiSolver(matrix, shape[1], fuse=fuse, numbering=numbering, relaxation=relaxation, dtype=dtype,
                          threads=threads, cache=cache)
    return solver.solve(b, tolerance=tolerance, max_iterations=max_iterations)


def _check_bounds(tolerance: float, max_iterations: int) -> None:
    try:
        fit = positive(tolerance, "tolerance") and operator.index(max_iterations) > 0
    except TypeError:
        raise TypeError(f"tolerance {tolerance!r} and {max_iterations!r} iterations: give a number and an integer, "
                        "both above 0") from None
    if not fit:
        raise ValueError(f"tolerance {tolerance} and {max_iterations} iterations: both must be above 0 and finite")


def _in_units(x: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Multiply columns by powers of two, in their own place where that is exact."""
    if (np.abs(units) < PLAIN).all():
        return np.multiply(x, np.ldexp(x.dtype.type(1), units), out=x)
    with np.errstate(over="ignore"):
        return np.ldexp(x, units)


def _warn(result: JacobiResult, tolerance: float, max_iterations: int) -> None:
    """Say which columns have no solution although steps are left."""
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
                    "other units if the solution is near the ends of the type's range", result.solution.dtype,
                    stopped.sum(), stopped.size, first, result.residuals[first], result.iterations[first], tolerance)
