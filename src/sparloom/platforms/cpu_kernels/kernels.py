"""What the platform asks of the kernels of one operation.

What families of sparse kernels have in common.

Kernels of SpMM: kernels/cpu/spmm.cpp bound to arrays.

Kernels of the maximum of products: kernels/cpu/spmm_max.cpp bound to arrays.

Kernels of SDDMM: kernels/cpu/sddmm.cpp bound to arrays.

Kernels of attention on a sparse pattern: kernels/cpu/attention.cpp bound to arrays.

Kernels of dense GEMM: kernels/cpu/gemm.cpp bound to arrays.
"""

import ctypes
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np

from sparloom.jit import NativeCall, address, aligned, compile_cpp
from sparloom.ops import GEMM, DenseOperands, Op, Operands, OracleBounds
from sparloom.platforms.cpu_kernels.rows import Rows, SparseRows
from sparloom.platforms.timing import Call, Check, SpotCheck
from sparloom.space import (
    AttentionSpace,
    Config,
    ConfigSpace,
    GemmSpace,
    GridSpace,
    SddmmSpace,
    SpmmMaxSpace,
    SpmmSpace,
    register_tile,
)

__all__ = [
    "Allocate", "AttentionKernels", "Family", "GemmKernels", "Given", "Rival", "SddmmKernels", "SparseCall",
    "SparseFamily", "SpmmKernels", "SpmmMaxKernels",
]

Given = Operands | DenseOperands

Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
"""Makes an array of a shape and a type, with any content."""

Rival = Callable[[Given, np.ndarray], Call]
"""Binds somebody else's kernel to operands and a result, to be timed between ours."""


class Family(Protocol):
    """Kernels of one operation: which there are, and how one is bound to arrays.

    Whatever a kernel needs besides (partitions, workspaces) is made by `bind`, which nobody times. Calls of one family
    may share a workspace, so one thread at a time may execute them.

    Args:
        threads: of every call.
        width: columns of the dense operand for which `space` is made; GEMM does not ask.
    """

    threads: int
    width: int

    def space(self) -> ConfigSpace:
        """List the configurations."""

    def result(self, operands: Given) -> np.ndarray:
        """Allocate what a kernel overwrites."""

    def bind(self, operands: Given, config: Config, result: np.ndarray) -> Call:
        """Bind the kernel of a legal configuration to arrays."""

    def rebind(self, call: Any, operands: Given, result: np.ndarray) -> None:
        """Point a call of `bind` to other arrays of the same shapes, for much less than binding costs.

        Args:
            call: keeps them alive until the next time.
        """

    def check(self, op: Op, operands: Given, *, seed: int) -> Check:
        """Know the result, or a part of it, in float64."""


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
        arguments = _Spmm(
            rows=rows.arguments, carries=None if carries is None else address(carries), width=operands.width,
            strip=strip, ahead=1024 * int(config["prefetch"]), stream=config["stream"], together=together)
        call = SparseCall(_spmm_library().sparloom_spmm, arguments, kept=(rows, carries))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        call.lent = (operands, result)


class _Spmm(ctypes.Structure):
    """The struct Spmm of kernels/cpu/spmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("strip", "ahead", "stream", "together")),
    )


@cache
def _spmm_library() -> ctypes.CDLL:
    return compile_cpp(["cpu/spmm.cpp"])


MOST_PLACES = 2**31 - 1  # places are int32


class SpmmMaxKernels(SparseFamily):
    """The family of the maximum of products."""

    def space(self) -> GridSpace:
        """List the configurations."""
        return SpmmMaxSpace(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.float32)

    def places(self, operands: Operands) -> np.ndarray:
        """Allocate the places of D's elements, (rows, width) int32."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.int32)

    def bind(
        self, operands: Operands, config: Config, result: np.ndarray, places: np.ndarray | None = None,
    ) -> SparseCall:
        """Bind the kernel of a legal configuration.

        Args:
            places: gets, for each element of D, which nonzero of A it comes from: the first one whose product is the
                largest, or NaN; -1 in rows without nonzeros. None if nobody wants it.

        Raises:
            ValueError: places are wanted, and there are too many nonzeros to count them in int32.
        """
        nnz = operands.matrix.pattern.nnz
        if places is not None and nnz > MOST_PLACES:
            raise ValueError(f"A has {nnz} nonzeros, and places count up to {MOST_PLACES}: take parts of its rows")
        rows = self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]))
        shape = (rows.pieces, operands.width)
        carries = aligned(shape, np.float32) if rows.cut else None
        carried_places = aligned(shape, np.int32) if rows.cut and places is not None else None
        arguments = _SpmmMax(
            rows=rows.arguments, carries=None if carries is None else address(carries),
            carried_places=None if carried_places is None else address(carried_places, np.int32),
            width=operands.width, ahead=1024 * int(config["prefetch"]))
        call = SparseCall(_spmm_max_library().sparloom_spmm_max, arguments, kept=(rows, carries, carried_places))
        self.rebind(call, operands, result, places)
        return call

    def rebind(
        self, call: SparseCall, operands: Operands, result: np.ndarray, places: np.ndarray | None = None,
    ) -> None:
        """Point a call to other arrays of the same shapes; with places only if it was bound with some."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        arguments.places = None if places is None else address(places, np.int32, written=True)
        call.lent = (operands, result, places)


class _SpmmMax(ctypes.Structure):
    """The struct SpmmMax of kernels/cpu/spmm_max.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries", "places", "carried_places")),
        ("width", ctypes.c_int64),
        ("ahead", ctypes.c_int32),
    )


@cache
def _spmm_max_library() -> ctypes.CDLL:
    return compile_cpp(["cpu/spmm_max.cpp"])


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
        arguments = _Sddmm(rows=rows.arguments, width=operands.width, ahead=2048 * int(config["prefetch"]),
                               group=config["group"])
        call = SparseCall(_sddmm_library().sparloom_sddmm, arguments, kept=(rows,))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.left, arguments.right = address(operands.dense["B"]), address(operands.dense["C"])
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


class _Sddmm(ctypes.Structure):
    """The struct Sddmm of kernels/cpu/sddmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("left", "right", "result")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("ahead", "group")),
    )


@cache
def _sddmm_library() -> ctypes.CDLL:
    return compile_cpp(["cpu/sddmm.cpp"])


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
        arguments = _Attention(
            rows=rows.arguments, parts=None if parts is None else address(parts), heads=heads, width=width,
            value_width=value_width, scale=width**-0.5, ahead=1024 * int(config["prefetch"]))
        call = NativeCall(_attention_library().sparloom_attention, arguments, kept=(rows, parts))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: NativeCall, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""
        arguments, dense = call.arguments, operands.dense
        arguments.queries, arguments.keys, arguments.values = (address(dense[name]) for name in ("Q", "K", "V"))
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


class _Attention(ctypes.Structure):
    """The struct Attention of kernels/cpu/attention.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "result", "parts")),
        *((name, ctypes.c_int64) for name in ("heads", "width", "value_width")),
        ("scale", ctypes.c_float),
        ("ahead", ctypes.c_int32),
    )


@cache
def _attention_library() -> ctypes.CDLL:
    return compile_cpp(["cpu/attention.cpp"])


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
        arguments = _Gemm(
            m=shape.m, n=shape.n, k=shape.k, tile_m=config["tile_m"], tile_n=config["tile_n"],
            tile_k=config["tile_k"], rows=rows, columns=columns, unroll=config["unroll"], pack=PACK[config["pack"]],
            threads=self.threads)
        floats = _gemm_library().sparloom_gemm_prepare(ctypes.byref(arguments))
        assert floats >= 0, f"kernels/cpu/gemm.cpp has no register tile {config['micro']}"
        if floats > self._workspace.size:
            self._workspace = aligned((floats,), np.float32, zero=True)
        arguments.workspace = address(self._workspace)
        call = NativeCall(_gemm_library().sparloom_gemm, arguments, kept=(self._workspace,))
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


class _Gemm(ctypes.Structure):
    """The struct Gemm of kernels/cpu/gemm.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "workspace")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "tile_m", "tile_n", "tile_k")),
        *((name, ctypes.c_int32) for name in ("rows", "columns", "unroll", "pack", "threads")),
        ("tile", ctypes.c_void_p),
    )


@cache
def _gemm_library() -> ctypes.CDLL:
    library = compile_cpp(["cpu/gemm.cpp"])
    library.sparloom_gemm_prepare.restype = ctypes.c_int64
    return library
