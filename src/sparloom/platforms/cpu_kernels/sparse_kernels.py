"""Kernels with one sparse operand: a family binds those of one operation to a pattern and to dense operands.

All numbers of a call are of one type of `ELEMENTS`; each type has libraries of its own, compiled when one is needed.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparloom.jit import NativeCall, address, aligned, kernel_library
from sparloom.ops import Op, Operands
from sparloom.platforms.cpu_kernels.row_pieces import (
    BoundRows,
    Rows,
    SparseRows,
    useful_threads,
)
from sparloom.platforms.timing import Check, SpotCheck
from sparloom.space import AttentionSpace, Config, GridSpace, SddmmSpace, SpmmMaxSpace, SpmmSpace
from sparloom.sparse import BFLOAT16

ELEMENTS: Mapping[np.dtype, str] = {
    np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.float16): "Half",
    BFLOAT16: "Bfloat"}
"""Types of numbers that kernels read -> their names in kernels/cpu; halves are added up in float32."""
HALF_BYTES = 2
MAX_STRIP = 2**31 - 1  # columns of a strip that is as wide as it can be
MAX_ARGMAX = 2**31 - 1  # the argmax is int32


class SparseCall(NativeCall):
    """A call whose arguments begin with a struct Rows; it keeps the values of the sparse operand alive.

    Args:
        dtype: of all numbers that it reads and writes.
    """

    _values: np.ndarray | None = None

    def __init__(self, run: Any, arguments: ctypes.Structure, *, kept: Sequence[Any], dtype: np.dtype) -> None:
        super().__init__(run, arguments, kept=kept)
        self.dtype = dtype if dtype == BFLOAT16 else dtype.type  # which is compared faster

    def point(self, values: np.ndarray) -> None:
        """Read other values of the same pattern."""
        if values is not self._values:
            self._values = None  # an exception before the last line must not leave an address of other values
            self.arguments.rows.values = address(values, self.dtype)
            self._values = values

    def release(self) -> None:
        super().release()
        self._values = None


class SparseFamily(ABC):
    """Kernels of one operation with one sparse operand.

    Args:
        threads: of every call.
        width: columns of the dense operands, all heads together, for which `space` is made; kernels take any width.
        rows: prepares the rows of a pattern.
    """

    make_space: Callable[[int], GridSpace]

    def __init__(self, threads: int, width: int, rows: SparseRows | None = None) -> None:
        self.threads = threads
        self.width = width
        self._rows = rows or SparseRows()

    def space(self) -> GridSpace:
        """List the configurations."""
        return self.make_space(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        dense = operands.dense["B"]
        return aligned((operands.matrix.pattern.rows, dense.shape[1]), dense.dtype)

    @abstractmethod
    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> NativeCall:
        """Bind the kernel of a legal configuration."""

    @abstractmethod
    def rebind(self, call: Any, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""

    def check(self, op: Op, operands: Operands, *, seed: int) -> Check:
        """Compare some rows of a result with the oracle, and make sure that all are written."""
        return SpotCheck(op, operands, seed=seed).compare_written

    def _bind_rows(self, operands: Operands, config: Config, *, together: bool = False) -> BoundRows:
        return self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]),
                               threads=useful_threads(operands, self.threads), together=together)


class SpmmKernels(SparseFamily):
    """The family of SpMM."""

    make_space = staticmethod(SpmmSpace)
    mean = False

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        together, dtype = config["together"] > 1, result.dtype
        rows = self._bind_rows(operands, config, together=together)
        carries = _carries(rows, operands.width, _sums(dtype))
        arguments = _Spmm(
            rows=rows.arguments, carries=_optional(carries), width=operands.width,
            strip=MAX_STRIP if config["strip"] == "all" else config["strip"], ahead=1024 * int(config["prefetch"]),
            stream=config["stream"], together=together, mean=self.mean)
        call = SparseCall(kernel_library("spmm", ELEMENTS[dtype]).sparloom_spmm, arguments, kept=(rows, carries),
                          dtype=dtype)
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        arguments, dtype = call.arguments, call.dtype
        call.point(operands.matrix.values)
        arguments.dense = address(operands.dense["B"], dtype)
        arguments.result = address(result, dtype, written=True)
        call.lent = (operands, result)


class SpmmMeanKernels(SpmmKernels):
    """The family of the mean of products of 16-bit numbers: sums are divided by the nonzeros before they are rounded.

    The mean of other numbers is SpMM with values that were divided.
    """

    mean = True

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        if result.itemsize != HALF_BYTES:
            raise ValueError(f"the result is {result.dtype}: divide the values, and multiply by SpmmKernels")
        return super().bind(operands, config, result)


class SpmmMaxKernels(SparseFamily):
    """The family of the maximum of products."""

    make_space = staticmethod(SpmmMaxSpace)

    def argmax(self, operands: Operands) -> np.ndarray:
        """Allocate the argmax of D, (rows, width) int32."""
        return aligned((operands.matrix.pattern.rows, operands.width), np.int32)

    def bind(
        self, operands: Operands, config: Config, result: np.ndarray, argmax: np.ndarray | None = None,
    ) -> SparseCall:
        """Bind the kernel of a legal configuration.

        Args:
            argmax: gets the index of the nonzero of A behind each element of D: the first one whose product is the
                largest, or NaN; -1 in rows without nonzeros. None: not computed.

        Raises:
            ValueError: the argmax is wanted and A has too many nonzeros to index them in int32.
        """
        nnz = operands.matrix.pattern.nnz
        if argmax is not None and nnz > MAX_ARGMAX:
            raise ValueError(f"A has {nnz} nonzeros, above the {MAX_ARGMAX} that the argmax can index: split A by rows")
        rows, dtype = self._bind_rows(operands, config), result.dtype
        carries = _carries(rows, operands.width, _sums(dtype))
        carried_argmax = None if argmax is None else _carries(rows, operands.width, np.int32)
        arguments = _SpmmMax(
            rows=rows.arguments, carries=_optional(carries), carried_places=_optional(carried_argmax),
            width=operands.width, ahead=1024 * int(config["prefetch"]))
        call = SparseCall(kernel_library("spmm_max", ELEMENTS[dtype]).sparloom_spmm_max, arguments,
                          kept=(rows, carries, carried_argmax), dtype=dtype)
        self.rebind(call, operands, result, argmax)
        return call

    def rebind(
        self, call: SparseCall, operands: Operands, result: np.ndarray, argmax: np.ndarray | None = None,
    ) -> None:
        """Point a call to other arrays of the same shapes; give an argmax only if it was bound with one."""
        arguments, dtype = call.arguments, call.dtype
        call.point(operands.matrix.values)
        arguments.dense = address(operands.dense["B"], dtype)
        arguments.result = address(result, dtype, written=True)
        arguments.places = None if argmax is None else address(argmax, np.int32, written=True)
        call.lent = (operands, result, argmax)


class SddmmKernels(SparseFamily):
    """The family of SDDMM."""

    make_space = staticmethod(SddmmSpace)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate the values of D (nnz,)."""
        return aligned((operands.matrix.pattern.nnz,), operands.dense["B"].dtype)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        rows = self._bind_rows(operands, config)
        arguments = _Sddmm(rows=rows.arguments, width=operands.width, ahead=2048 * int(config["prefetch"]),
                           group=config["group"])
        call = SparseCall(kernel_library("sddmm", ELEMENTS[result.dtype]).sparloom_sddmm, arguments, kept=(rows,),
                          dtype=result.dtype)
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        arguments, dtype = call.arguments, call.dtype
        call.point(operands.matrix.values)
        arguments.left, arguments.right = address(operands.dense["B"], dtype), address(operands.dense["C"], dtype)
        arguments.result = address(result, dtype, written=True)
        call.lent = (operands, result)


class AttentionKernels(SparseFamily):
    """The family of attention on a sparse pattern."""

    make_space = staticmethod(AttentionSpace)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, heads, columns of a head of V)."""
        values = operands.dense["V"]
        return aligned((operands.matrix.pattern.rows, *values.shape[1:]), values.dtype)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        """Bind the kernel of a legal configuration; scores are divided by the square root of the width of a head."""
        rows, dtype = self._bind_rows(operands, config), result.dtype
        heads, width = operands.dense["K"].shape[1:]
        value_width = operands.dense["V"].shape[2]
        parts = _carries(rows, heads * (value_width + 2), _sums(dtype), always=result.itemsize == HALF_BYTES)
        arguments = _Attention(
            rows=rows.arguments, parts=_optional(parts), heads=heads, width=width, value_width=value_width,
            scale=width**-0.5, ahead=1024 * int(config["prefetch"]))
        call = SparseCall(kernel_library("attention", ELEMENTS[dtype]).sparloom_attention, arguments,
                          kept=(rows, parts), dtype=dtype)
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        arguments, dense, dtype = call.arguments, operands.dense, call.dtype
        arguments.queries, arguments.keys, arguments.values = (
            address(dense[name], dtype) for name in ("Q", "K", "V"))
        arguments.result = address(result, dtype, written=True)
        call.lent = (operands, result)


SPARSE_FAMILIES: Mapping[str, type[SparseFamily]] = {
    "spmm": SpmmKernels, "spmm_mean": SpmmMeanKernels, "spmm_max": SpmmMaxKernels, "sddmm": SddmmKernels,
    "attention": AttentionKernels}
"""Families of kernels of sparse operations, by operation."""


class _Spmm(ctypes.Structure):
    """The struct Spmm of kernels/cpu/arguments.hpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("strip", "ahead", "stream", "together", "mean")),
    )


class _SpmmMax(ctypes.Structure):
    """The struct SpmmMax of kernels/cpu/arguments.hpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries", "places", "carried_places")),
        ("width", ctypes.c_int64),
        ("ahead", ctypes.c_int32),
    )


class _Sddmm(ctypes.Structure):
    """The struct Sddmm of kernels/cpu/arguments.hpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("left", "right", "result")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("ahead", "group")),
    )


class _Attention(ctypes.Structure):
    """The struct Attention of kernels/cpu/arguments.hpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "result", "parts")),
        *((name, ctypes.c_int64) for name in ("heads", "width", "value_width")),
        ("scale", ctypes.c_double),
        ("ahead", ctypes.c_int32),
    )


def _sums(dtype: np.dtype) -> type[np.generic]:
    """Return the type in which numbers of a type are added up."""
    return np.float64 if dtype == np.float64 else np.float32


def _carries(
    rows: BoundRows, width: int, dtype: type[np.generic], *, always: bool = False,
) -> np.ndarray | None:
    """Allocate room for two partial results of each piece; None where no row is shared by pieces, unless `always`."""
    return aligned((2 * rows.count, width), dtype) if always or rows.pieces.cut else None


def _optional(array: np.ndarray | None) -> int | None:
    return None if array is None else address(array, array.dtype.type)
