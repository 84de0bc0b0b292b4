"""Operands on a device: patterns, matrices, dense arrays, the types of their elements, and hub rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ops import Operands
from sparloom.platforms.cuda.device import Gpu
from sparloom.platforms.platform import Inputs
from sparloom.sparse import BFLOAT16, Pattern

BITS = np.dtype(np.uint16)
"""Type of arrays that hold the bits of bfloat16 numbers, a type that NumPy and CuPy lack."""

ELEMENTS: Mapping[np.dtype, str] = MappingProxyType({
    np.dtype(np.float32): "float", np.dtype(np.float16): "Half", BITS: "Bfloat"})
"""Types of elements -> their names in kernels/cuda/element.cuh."""

ALL_ROWS = np.int64(2**62)  # more nonzeros than any row has: no row is a hub
MIN_HUB = 128  # nonzeros: fewer do not fill a block
MAX_COLUMNS = 2**31 - 1024
"""Most columns: kernels/cuda/index.cuh counts beyond the last column in int32."""


def as_float32(array: np.ndarray) -> np.ndarray:
    """Convert float32, float16 and the bits of bfloat16 to float32, exactly; returns float64 numbers unchanged."""
    if array.dtype == BFLOAT16:
        array = array.view(BITS)
    if array.dtype == BITS:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.promote_types(array.dtype, np.float32), copy=False)


@dataclass(frozen=True)
class Hubs:
    """Rows of at least `degree` nonzeros, (count,) int32 on the device, which get a block of their own."""

    degree: np.int64
    rows: Any
    count: int


class HubThresholds:
    """Quantiles of the lengths of rows of a matrix, from which a row, also of a sample, is a hub."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._known: dict[str, np.int64] = {}

    def of(self, balance: str) -> np.int64:
        """Compute a quantile of the lengths of all rows that are not empty, such as "q95".

        Source: AutoSAGE's hub threshold. Departure: rows of less than 128 nonzeros are never hubs.
        """
        if balance not in self._known:
            lengths = self._pattern.row_lengths()
            filled = lengths[lengths > 0]
            quantile = np.quantile(filled, int(balance[1:]) / 100) if filled.size else 0
            self._known[balance] = np.int64(max(MIN_HUB, np.ceil(quantile)))
        return self._known[balance]


@dataclass(frozen=True)
class DevicePattern:
    """A pattern with its arrays on a device: indptr (rows + 1,) int64, indices (nnz,) int32; and its hubs."""

    pattern: Pattern
    indptr: Any
    indices: Any
    degrees: HubThresholds

    @classmethod
    def on(cls, gpu: Gpu, pattern: Pattern, degrees: HubThresholds | None = None) -> DevicePattern:
        """Copy a pattern to the device; `degrees` are those of the matrix from which its rows were sampled."""
        return cls(pattern, gpu.upload(pattern.indptr), gpu.upload(pattern.indices), degrees or HubThresholds(pattern))

    def hubs(self, gpu: Gpu, balance: str) -> Hubs:
        """List the rows that are hubs by a threshold such as "q95"."""
        degree = self.degrees.of(balance)
        rows = np.flatnonzero(self.pattern.row_lengths() >= degree).astype(np.int32)
        return Hubs(degree, gpu.upload(rows), rows.size)


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A `SparseMatrix` on a device; values are (nnz,) float32, float16 or bits of bfloat16."""

    gpu: Gpu
    placed: DevicePattern
    values: Any

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def pattern(self) -> Pattern:
        """Positions of the nonzeros, in host memory."""
        return self.placed.pattern

    def with_values(self, values: Any) -> DeviceMatrix:
        """Replace the values of the nonzeros.

        Args:
            values: (nnz,) of an element type, of any library whose arrays are on this device; not copied.

        Raises:
            TypeError, ValueError: they are not on the device, or of another type or shape.
        """
        found = self.gpu.adopt(values, "values")
        if found.dtype not in ELEMENTS or found.shape != (self.pattern.nnz,):
            raise ValueError(f"values are {found.dtype} of shape {found.shape}: give ({self.pattern.nnz},) float32 or "
                             "float16")
        return DeviceMatrix(self.gpu, self.placed, found)

    def __repr__(self) -> str:
        return f"DeviceMatrix({self.pattern.rows} x {self.pattern.cols}, {self.pattern.nnz} nonzeros)"


@dataclass(frozen=True)
class DeviceOperands:
    """Operands of an operation on a device.

    Args:
        host: the same operands on the host.
        dense: arrays of the device by name.
        values: of the sparse operand; None where there is none.
        pattern: of the sparse operand, if it is on the device already.
        element: type of all of them, by its name in the kernels.
    """

    host: Inputs
    dense: Mapping[str, Any]
    values: Any | None
    pattern: DevicePattern | None = None
    element: str = "float"

    @classmethod
    def on(cls, gpu: Gpu, host: Inputs) -> DeviceOperands:
        """Copy operands to new memory of the device; float32 values are converted to the type of the dense arrays.

        Raises:
            Unsupported: an array is neither float32 nor float16, the dense ones differ, or the values are float64.
        """
        dtype = dense_type(host)
        if dtype == BITS:
            raise Unsupported(f"the dense operands are {dtype}: the kernels take float32 or float16, convert them")
        dense = {name: gpu.upload(np.ascontiguousarray(array)) for name, array in host.dense.items()}
        if not isinstance(host, Operands):
            return cls(host, dense, None, element=ELEMENTS[dtype])
        values = host.matrix.values
        if values.dtype != np.float32:
            raise Unsupported(f"the values are {values.dtype}: the kernels take float32, convert them")
        return cls(host, dense, gpu.upload(values.astype(dtype, copy=False)), element=ELEMENTS[dtype])


class PatternCache:
    """Keeps the latest pattern on the device, because configurations of one matrix share it."""

    def __init__(self) -> None:
        self._latest: tuple[Gpu, DevicePattern] | None = None

    def get(self, gpu: Gpu, operands: DeviceOperands) -> DevicePattern:
        """Take the pattern of operands, copied to the device unless it is there."""
        return operands.pattern if operands.pattern is not None else self.on(gpu, operands.host.matrix.pattern)

    def on(self, gpu: Gpu, pattern: Pattern) -> DevicePattern:
        """Copy the arrays of a pattern, unless they are those of the latest one."""
        if self._latest is None or self._latest[0] is not gpu or self._latest[1].pattern is not pattern:
            self._latest = gpu, DevicePattern.on(gpu, pattern)
        return self._latest[1]


def dense_type(inputs: Inputs) -> np.dtype:
    """Read the one type of the dense operands and the result; raises Unsupported if it is none of ELEMENTS."""
    first, dtype = next((name, array.dtype) for name, array in inputs.dense.items())
    for name, array in inputs.dense.items():
        if array.dtype not in ELEMENTS:
            raise Unsupported(f"{name} is {array.dtype}: the kernels take float32 or float16, convert it")
        if array.dtype != dtype:
            raise Unsupported(f"{name} is {array.dtype} and {first} {dtype}: the kernels take one type, convert it")
    return dtype


def element_macro(element: str) -> dict[str, str]:
    """Make the macro that tells a source the type of elements; its default is float."""
    return {} if element == "float" else {"ELEMENT": element}


def columns_argument(columns: int) -> np.int32:
    """Convert a number of columns to a kernel argument; raises Unsupported if kernels cannot count it."""
    if columns > MAX_COLUMNS:
        raise Unsupported(f"{columns} columns, above {MAX_COLUMNS}, which the kernels count in int32")
    return np.int32(columns)
