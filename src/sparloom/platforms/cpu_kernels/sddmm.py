"""Kernels of SDDMM: kernels/cpu/sddmm.cpp bound to arrays."""

import ctypes
from functools import cache

import numpy as np

from sparloom.jit import address, compile_cpp
from sparloom.ops import Operands
from sparloom.platforms.cpu_kernels.sparse_family import SparseCall, SparseFamily
from sparloom.platforms.cpu_kernels.sparse_rows import Rows
from sparloom.space import Config, GridSpace, SddmmSpace

__all__ = ["SddmmKernels"]


class SddmmKernels(SparseFamily):
    """The family of SDDMM."""

    def space(self) -> GridSpace:
        """List the configurations."""
        return SddmmSpace(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate the values of D (nnz,)."""
        return self._allocate((operands.matrix.pattern.nnz,), np.float32)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        """Bind the kernel of a legal configuration."""
        rows = self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]))
        arguments = _Arguments(rows=rows.arguments, width=operands.width, ahead=2048 * int(config["prefetch"]),
                               group=config["group"])
        call = SparseCall(_library().sparloom_sddmm, arguments, kept=(rows,))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.left, arguments.right = address(operands.dense["B"]), address(operands.dense["C"])
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


class _Arguments(ctypes.Structure):
    """The struct Sddmm of kernels/cpu/sddmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("left", "right", "result")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("ahead", "group")),
    )


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/sddmm.cpp"])
