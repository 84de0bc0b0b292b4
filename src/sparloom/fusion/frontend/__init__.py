"""The front end: reads a Python function into a program of two loops.

In the order of the data: `ssa` (Numba's typed SSA form), `statements` (loops, branches, assignments, the whole
program), `expressions` (right-hand sides), `environment` (what is known about names).
"""

from sparloom.fusion.frontend.statements import read_program
from sparloom.fusion.program import fprange

__all__ = ["fprange", "read_program"]
