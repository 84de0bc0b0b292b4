"""Residuals in a wider type, for columns of which rounding could hide that they have not converged."""

from functools import cached_property

import numpy as np
import scipy.sparse

from sparloom.solvers.iteration import JacobiIteration
from sparloom.sparse import SparseMatrix

__all__ = ["ExactResiduals"]

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
