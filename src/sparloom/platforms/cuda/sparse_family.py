"""What families of kernels on a sparse pattern have in common."""

from sparloom.ops import Op, Operands
from sparloom.platforms.cuda.csr import PatternPlace
from sparloom.platforms.cuda.family import HostCheck
from sparloom.platforms.spot_check import SpotCheck
from sparloom.space import GridSpace

__all__ = ["SparseFamily"]


class SparseFamily:
    """The configurations, the place of the pattern, and the check of some rows; subclasses bind kernels.

    Args:
        listed: its configurations.
    """

    def __init__(self, listed: GridSpace) -> None:
        self._space = listed
        self._patterns = PatternPlace()

    def space(self) -> GridSpace:
        """List the configurations."""
        return self._space

    def check(self, op: Op, given: Operands, *, seed: int) -> HostCheck:
        """Know some rows of the result, and that all are written."""
        return SpotCheck(op, given, seed=seed).compare_written
