"""Iterative solvers on fused products, for many right-hand sides at once."""

from sparloom.solvers.iteration import JacobiIteration, converging_relaxation
from sparloom.solvers.jacobi import JacobiResult, JacobiSolver, jacobi
from sparloom.solvers.sweeps import Numbering, Sweeps

__all__ = ["JacobiIteration", "JacobiResult", "JacobiSolver", "Numbering", "Sweeps", "converging_relaxation", "jacobi"]
