"""Iterative solvers on fused products, for many right-hand sides at once.

    iteration    Jacobi's method as x -> M x + g, checks of its inputs, and relaxation
    sweeps       two steps at a time: numbering, iterates, and the choice of a plan
    jacobi       the solver: convergence, exact residuals, results
"""

from sparloom.solvers.iteration import JacobiIteration, converging_relaxation
from sparloom.solvers.jacobi import JacobiResult, JacobiSolver, jacobi
from sparloom.solvers.sweeps import Numbering, Sweeps

__all__ = ["JacobiIteration", "JacobiResult", "JacobiSolver", "Numbering", "Sweeps", "converging_relaxation", "jacobi"]
