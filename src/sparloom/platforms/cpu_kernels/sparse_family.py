"""What families of sparse kernels have in common."""

import numpy as np

from sparloom.jit import NativeCall, address, aligned
from sparloom.ops import Op, Operands
from sparloom.platforms.cpu_kernels.family import Allocate
from sparloom.platforms.cpu_kernels.sparse_rows import SparseRows
from sparloom.platforms.spot_check import SpotCheck
from sparloom.platforms.sweep import Check

__all__ = ["SparseCall", "SparseFamily"]


class SparseCall(NativeCall):
    """A call whose arguments begin with a struct Rows; it keeps the values of the sparse operand alive."""

    _values: np.ndarray | None = None

    def point(self, values: np.ndarray) -> None:
        """Let it read other values of the same pattern."""
        if values is not self._values:
            self._values = None  # an exception before the last line must not leave an address of other values
            self.arguments.rows.values = address(values)
            self._values = values


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
