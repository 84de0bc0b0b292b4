"""How far a step of Jacobi's method may go."""

import numpy as np
import scipy.sparse.linalg

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
    """
    a = matrix.to_scipy().astype(np.float64)
    scale = scipy.sparse.diags_array(1 / np.sqrt(a.diagonal()))
    if a.shape[0] < 3:  # too small for Lanczos
        largest = np.linalg.eigvalsh((scale @ a @ scale).toarray()).max(initial=0)
    else:
        start = np.random.default_rng(0).normal(size=a.shape[0])
        largest = scipy.sparse.linalg.eigsh(scale @ a @ scale, k=1, which="LA", tol=1e-3, v0=start,
                                            return_eigenvectors=False)[0]
    return 1.0 if largest < ITSELF else float(SHARE * 2 / largest)
