"""Run programs by the interpreter of the loop IR, which detects races and accesses out of bounds."""

from sparloom.ir import InterpretedLibrary

__all__ = ["InterpretedLibrary"]
