"""Kernels of attention on a sparse pattern: kernels/cpu/attention.cpp bound to arrays."""

import ctypes
from functools import cache

import numpy as np

from sparloom.jit import NativeCall, address, aligned, compile_cpp
from sparloom.ops import Operands
from sparloom.platforms.cpu_kernels.sparse_family import SparseFamily
from sparloom.platforms.cpu_kernels.sparse_rows import Rows
from sparloom.space import AttentionSpace, Config, GridSpace

__all__ = ["AttentionKernels"]


class AttentionKernels(SparseFamily):
    """The family of attention."""

    def space(self) -> GridSpace:
        """List the configurations."""
        return AttentionSpace(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, heads, columns of V's heads)."""
        rows, heads, each = operands.matrix.pattern.rows, *operands.dense["V"].shape[1:]
        return self._allocate((rows, heads, each), np.float32)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> NativeCall:
        """Bind the kernel of a legal configuration; scores are divided by the square root of a head's width."""
        rows = self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]))
        heads, width = operands.dense["K"].shape[1:]
        value_width = operands.dense["V"].shape[2]
        parts = aligned((rows.pieces, 2 * heads * (value_width + 2)), np.float32) if rows.cut else None
        arguments = _Arguments(
            rows=rows.arguments, parts=None if parts is None else address(parts), heads=heads, width=width,
            value_width=value_width, scale=width**-0.5, ahead=1024 * int(config["prefetch"]))
        call = NativeCall(_library().sparloom_attention, arguments, kept=(rows, parts))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: NativeCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""
        arguments, dense = call.arguments, operands.dense
        arguments.queries, arguments.keys, arguments.values = (address(dense[name]) for name in ("Q", "K", "V"))
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


class _Arguments(ctypes.Structure):
    """The struct Attention of kernels/cpu/attention.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "result", "parts")),
        *((name, ctypes.c_int64) for name in ("heads", "width", "value_width")),
        ("scale", ctypes.c_float),
        ("ahead", ctypes.c_int32),
    )


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/attention.cpp"])
