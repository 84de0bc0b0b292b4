"""Kernels of dense GEMM: kernels/cpu/gemm.cpp bound to arrays."""

import ctypes
from functools import cache, cached_property

import numpy as np

from sparloom.jit import NativeCall, address, aligned, compile_cpp
from sparloom.ops import GEMM, DenseOperands, OracleBounds
from sparloom.platforms.cpu_kernels.family import Allocate
from sparloom.platforms.sweep import Check
from sparloom.space import Config, GemmSpace, GridSpace, register_tile

__all__ = ["GemmKernels"]

PACK = {"none": 0, "b": 1, "ab": 2}


class GemmKernels:
    """The family of GEMM; all calls share one workspace for packed blocks.

    Args:
        threads: of every call.
        width: of no meaning here: a shape has its own.
    """

    def __init__(self, threads: int, width: int, allocate: Allocate = aligned) -> None:
        self.threads = threads
        self.width = width
        self._allocate = allocate
        self._workspace = aligned((0,), np.float32)

    def space(self) -> GridSpace:
        """List the configurations."""
        return self._space

    def result(self, operands: DenseOperands) -> np.ndarray:
        """Allocate C (m, n)."""
        return self._allocate((operands.shape.m, operands.shape.n), np.float32)

    def bind(self, operands: DenseOperands, config: Config, result: np.ndarray) -> NativeCall:
        """Bind the kernel of a legal configuration."""
        shape, (rows, columns) = operands.shape, register_tile(config)
        arguments = _Arguments(
            m=shape.m, n=shape.n, k=shape.k, tile_m=config["tile_m"], tile_n=config["tile_n"],
            tile_k=config["tile_k"], rows=rows, columns=columns, unroll=config["unroll"], pack=PACK[config["pack"]],
            threads=self.threads)
        floats = _library().sparloom_gemm_prepare(ctypes.byref(arguments))
        assert floats >= 0, f"kernels/cpu/gemm.cpp has no register tile {config['micro']}"
        if floats > self._workspace.size:
            self._workspace = aligned((floats,), np.float32, zero=True)
        arguments.workspace = address(self._workspace)
        call = NativeCall(_library().sparloom_gemm, arguments, kept=(self._workspace,))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: NativeCall, operands: DenseOperands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""
        arguments = call.arguments
        arguments.a, arguments.b = address(operands.dense["A"]), address(operands.dense["B"])
        arguments.c = address(result, written=True)
        call.lent = (operands, result)

    def check(self, op: GEMM, operands: DenseOperands, *, seed: int) -> Check:
        """Know all of the result."""
        oracle = op.oracle(operands)
        return OracleBounds(oracle, terms=op.terms(operands.shape), scale=op.scale(operands)).check

    @cached_property
    def _space(self) -> GridSpace:
        return GemmSpace()


class _Arguments(ctypes.Structure):
    """The struct Gemm of kernels/cpu/gemm.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "workspace")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "tile_m", "tile_n", "tile_k")),
        *((name, ctypes.c_int32) for name in ("rows", "columns", "unroll", "pack", "threads")),
        ("tile", ctypes.c_void_p),
    )


@cache
def _library() -> ctypes.CDLL:
    library = compile_cpp(["cpu/gemm.cpp"])
    library.sparloom_gemm_prepare.restype = ctypes.c_int64
    return library
