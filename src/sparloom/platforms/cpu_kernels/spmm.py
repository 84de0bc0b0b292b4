"""Kernels of SpMM: kernels/cpu/spmm.cpp bound to arrays."""

import ctypes
from functools import cache

import numpy as np

from sparloom.jit import address, aligned, compile_cpp
from sparloom.ops import Operands
from sparloom.platforms.cpu_kernels.sparse_family import SparseCall, SparseFamily
from sparloom.platforms.cpu_kernels.sparse_rows import Rows
from sparloom.space import Config, GridSpace, SpmmSpace

__all__ = ["SpmmKernels"]

WHOLE = 2**31 - 1  # columns of a strip that is as wide as it can be


class SpmmKernels(SparseFamily):
    """The family of SpMM."""

    def space(self) -> GridSpace:
        """List the configurations."""
        return SpmmSpace(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.float32)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        """Bind the kernel of a legal configuration."""
        together = config["together"] > 1
        rows = self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]),
                               together=together)
        carries = aligned((rows.pieces, operands.width), np.float32) if rows.cut else None
        strip = WHOLE if config["strip"] == "all" else config["strip"]
        arguments = _Arguments(
            rows=rows.arguments, carries=None if carries is None else address(carries), width=operands.width,
            strip=strip, ahead=1024 * int(config["prefetch"]), stream=config["stream"], together=together)
        call = SparseCall(_library().sparloom_spmm, arguments, kept=(rows, carries))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        call.lent = (operands, result)


class _Arguments(ctypes.Structure):
    """The struct Spmm of kernels/cpu/spmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("strip", "ahead", "stream", "together")),
    )


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/spmm.cpp"])
