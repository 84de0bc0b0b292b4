"""Iterative solvers on fused products, for many right-hand sides at once; powers and polynomials of a matrix.

    iteration      Jacobi's method as x -> M x + g, checks of its inputs, and relaxation
    sweeps         two steps at a time: numbering, iterates, and the choice of a plan
    jacobi         the solver: convergence, exact residuals, results
    packed_steps   a matrix packed for products with few columns, and kernels bound to the arrays of several steps
    traversal      the order of blocks of rows in which several steps share one reading of the matrix
    matrix_powers  X, A X, ..., A^k X, and polynomials of A times X: which order is faster is measured
"""

from sparloom.solvers.iteration import JacobiIteration, converging_relaxation
from sparloom.solvers.jacobi import JacobiResult, JacobiSolver, jacobi
from sparloom.solvers.matrix_powers import MatrixPowers, PowersPlan, polynomial, powers, prepare_powers
from sparloom.solvers.sweeps import BlockedSweeps, Numbering, Sweeps

__all__ = [
    "BlockedSweeps", "JacobiIteration", "JacobiResult", "JacobiSolver", "MatrixPowers", "Numbering", "PowersPlan",
    "Sweeps", "converging_relaxation", "jacobi", "polynomial", "powers", "prepare_powers",
]
