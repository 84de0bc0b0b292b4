"""What families of sparse kernels have in common."""

from sparloom.jit import aligned
from sparloom.ops import Op, Operands
from sparloom.platforms.cpu_kernels.family import Allocate
from sparloom.platforms.cpu_kernels.sparse_rows import SparseRows
from sparloom.platforms.spot_check import SpotCheck
from sparloom.platforms.sweep import Check

__all__ = ["SparseFamily"]


class SparseFamily:
    """Kernels of one operation with one sparse operand.

    Args:
        threads: of every call.
        width: columns of the dense operands, all heads together, for which `space` is made; any width is computed.
        allocate: arrays for results.
    """

    def __init__(self, threads: int, width: int, allocate: Allocate = aligned) -> None:
        self.threads = threads
        self.width = width
        self._allocate = allocate
        self._rows = SparseRows(threads)

    def check(self, op: Op, operands: Operands, *, seed: int) -> Check:
        """Know some rows of the result, and that all are written."""
        return SpotCheck(op, operands, seed=seed).compare_written
