"""The front end: Python text to a program of two loops."""

from sparloom.fusion.frontend.markers import fprange
from sparloom.fusion.frontend.reader import read_program
from sparloom.fusion.frontend.refusal import refuse

__all__ = ["fprange", "read_program", "refuse"]
