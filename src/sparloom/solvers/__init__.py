"""Iterative solvers on fused products, for many right-hand sides at once."""

from sparloom.solvers.iteration import JacobiIteration
from sparloom.solvers.jacobi import JacobiResult, JacobiSolver, jacobi
from sparloom.solvers.numbering import Numbering
from sparloom.solvers.relaxation import converging_relaxation
from sparloom.solvers.sweeps import Sweeps

__all__ = ["JacobiIteration", "JacobiResult", "JacobiSolver", "Numbering", "Sweeps", "converging_relaxation", "jacobi"]
