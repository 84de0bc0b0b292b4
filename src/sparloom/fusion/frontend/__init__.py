"""The front end: Python text to a program of two loops."""

from sparloom.fusion.frontend.ssa import fprange
from sparloom.fusion.frontend.statements import read_program

__all__ = ["fprange", "read_program"]
