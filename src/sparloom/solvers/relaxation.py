"""How far a step of Jacobi's method may go."""

import numpy as np
import scipy.sparse.linalg

from sparloom.solvers.iteration import solvable
from sparloom.sparse import SparseMatrix

__all__ = ["converging_relaxation"]

ITSELF = 1.99  # largest eigenvalue of A / D below which the method needs no relaxation: 2 less what the estimate is off
SHARE = 0.95   # of the largest relaxation that converges


def converging_relaxation(matrix: SparseMatrix) -> float:
    """Give 1 where Jacobi's method converges by itself, else what makes it converge.

    Args:
        matrix: A, symmetric positive definite: only then does the answer hold.

    Returns:
        The relaxation w of `JacobiIteration`; below 2 / (largest eigenvalue of A / D), which Lanczos estimates.

    Raises:
        TypeError: A is no `SparseMatrix`.
        ValueError: A is not square, holds an infinity or NaN, or its diagonal is not positive.
    """
    diagonal = solvable(matrix)
    if (diagonal < 0).any():
        raise ValueError(f"the diagonal is negative in row {int(np.argmax(diagonal < 0))}: the matrix is not positive "
                         "definite, and nothing is known of its relaxation")
    a, roots = matrix.to_scipy().astype(np.float64), np.sqrt(diagonal)
    a.data = a.data / roots[matrix.pattern.row_ids()] / roots[matrix.pattern.indices]
    if a.shape[0] < 3:  # too small for Lanczos
        largest = np.linalg.eigvalsh(a.toarray()).max(initial=0)
    else:
        start = np.random.default_rng(0).normal(size=a.shape[0])
        largest = scipy.sparse.linalg.eigsh(a, k=1, which="LA", tol=1e-3, v0=start, return_eigenvectors=False)[0]
    return 1.0 if largest < ITSELF else float(SHARE * 2 / largest)
