"""Types of numbers that kernels take, in NumPy's words and in theirs: kernels/cuda/element.cuh.

The sparse operand on a device, with what the ways of sharing its rows need.

What the platform asks of the kernels of one operation on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ops import DenseOperands, Op, Operands
from sparloom.platforms.cuda.device import Gpu, Kernel, LaunchShape
from sparloom.platforms.timing import Call
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = [
    "ALL_ROWS", "BITS", "ELEMENTS", "MOST_COLUMNS", "DeviceMatrix", "DevicePattern", "Family", "Given", "HostCheck",
    "HubDegrees", "Hubs", "Launch", "Launches", "PatternPlace", "Placed", "Rival", "columns_argument", "dense_type",
    "element_macro", "in_order", "widened",
]

BITS = np.dtype(np.uint16)
"""What arrays of bfloat16 are here, as NumPy and CuPy have no such type."""

ELEMENTS: Mapping[np.dtype, str] = MappingProxyType({
    np.dtype(np.float32): "float", np.dtype(np.float16): "Half", BITS: "Bfloat"})


def widened(array: np.ndarray) -> np.ndarray:
    """Read numbers of any of these types as float32, exactly."""
    if array.dtype == BITS:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


ALL_ROWS = np.int64(2**62)  # more nonzeros than any row has: no row is a hub
LEAST_HUB = 128  # nonzeros: fewer do not fill a block


@dataclass(frozen=True)
class Hubs:
    """Rows that a block works on alone.

    Args:
        degree: rows with at least so many nonzeros.
        rows: (count,) int32 on the device.
    """

    degree: np.int64
    rows: Any
    count: int


class HubDegrees:
    """Nonzeros from which on a row of a matrix is a hub, each threshold computed once.

    Args:
        pattern: of the whole matrix, also for samples of its rows.
    """

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._known: dict[str, np.int64] = {}

    def of(self, balance: str) -> np.int64:
        """Give a quantile of the lengths of all rows that are not empty, such as "q95".

        Source: AutoSAGE's hub threshold. Departure: rows of less than 128 nonzeros are never hubs.
        """
        if balance not in self._known:
            lengths = self._pattern.row_lengths()
            filled = lengths[lengths > 0]
            quantile = np.quantile(filled, int(balance[1:]) / 100) if filled.size else 0
            self._known[balance] = np.int64(max(LEAST_HUB, np.ceil(quantile)))
        return self._known[balance]


@dataclass(frozen=True)
class DevicePattern:
    """A pattern and its arrays on a device: indptr (rows + 1,) int64, indices (nnz,) int32.

    Args:
        degrees: from which on its rows are hubs.
    """

    pattern: Pattern
    indptr: Any
    indices: Any
    degrees: HubDegrees

    @classmethod
    def on(cls, gpu: Gpu, pattern: Pattern, degrees: HubDegrees | None = None) -> DevicePattern:
        """Copy a pattern to the device.

        Args:
            degrees: of the matrix that its rows are a sample of; its own unless given.
        """
        return cls(pattern, gpu.upload(pattern.indptr), gpu.upload(pattern.indices), degrees or HubDegrees(pattern))

    def hubs(self, gpu: Gpu, balance: str) -> Hubs:
        """List the rows that are hubs by a threshold such as "q95"."""
        degree = self.degrees.of(balance)
        rows = np.flatnonzero(self.pattern.row_lengths() >= degree).astype(np.int32)
        return Hubs(degree, gpu.upload(rows), rows.size)


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A matrix whose arrays are on a device: what `SparseMatrix` is there.

    Args:
        values: (nnz,) float32, float16 or bits of bfloat16 on the device.
    """

    gpu: Gpu
    placed: DevicePattern
    values: Any

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def pattern(self) -> Pattern:
        """Where the nonzeros are, in the memory of the processor."""
        return self.placed.pattern

    def with_values(self, values: Any) -> DeviceMatrix:
        """Put other values at the nonzeros.

        Args:
            values: (nnz,) of such a type, of any library whose arrays are on this device; used as they are.

        Raises:
            TypeError, ValueError: they are not on the device, or not of this type and shape.
        """
        found = self.gpu.adopt(values, "values")
        if found.dtype not in ELEMENTS or found.shape != (self.pattern.nnz,):
            raise ValueError(f"values are {found.dtype} of shape {found.shape}: give ({self.pattern.nnz},) float32 or "
                             "float16")
        return DeviceMatrix(self.gpu, self.placed, found)

    def __repr__(self) -> str:
        return f"DeviceMatrix({self.pattern.rows} x {self.pattern.cols}, {self.pattern.nnz} nonzeros)"


class PatternPlace:
    """Keeps the pattern seen last on the device, as configurations of one matrix share it."""

    def __init__(self) -> None:
        self._latest: tuple[Gpu, DevicePattern] | None = None

    def on(self, gpu: Gpu, pattern: Pattern) -> DevicePattern:
        """Copy the arrays of a pattern, unless they are there."""
        if self._latest is None or self._latest[0] is not gpu or self._latest[1].pattern is not pattern:
            self._latest = gpu, DevicePattern.on(gpu, pattern)
        return self._latest[1]

    def of(self, gpu: Gpu, placed: Placed) -> DevicePattern:
        """Take the pattern of operands, copied unless it came with them."""
        return placed.pattern if placed.pattern is not None else self.on(gpu, placed.given.matrix.pattern)


Given = Operands | DenseOperands

MOST_COLUMNS = 2**31 - 1024  # kernels/cuda/index.cuh counts beyond the last column in int32

HostCheck = Callable[[np.ndarray], None]
"""Compares a result on the host with the oracle; raises AssertionError."""


@dataclass(frozen=True)
class Placed:
    """Operands on a device.

    Args:
        given: the same on the host.
        dense: arrays of the device by name.
        values: of the sparse operand; None where there is none.
        pattern: of the sparse operand, where it is on the device already.
        element: type of all of them, in the words of the kernels.
    """

    given: Given
    dense: Mapping[str, Any]
    values: Any | None
    pattern: DevicePattern | None = None
    element: str = "float"

    @classmethod
    def on(cls, gpu: Gpu, given: Given) -> Placed:
        """Copy to memory of the device that nothing else holds; float32 values become of the type of the dense arrays.

        Raises:
            Unsupported: an array is neither float32 nor float16, the dense ones differ, or the values are float64.
        """
        dtype = dense_type(given)
        if dtype == BITS:
            raise Unsupported(f"the dense operands are {dtype}: the kernels take float32 or float16, convert them")
        dense = {name: gpu.upload(np.ascontiguousarray(array)) for name, array in given.dense.items()}
        if not isinstance(given, Operands):
            return cls(given, dense, None, element=ELEMENTS[dtype])
        values = given.matrix.values
        if values.dtype != np.float32:
            raise Unsupported(f"the values are {values.dtype}: the kernels take float32, convert them")
        return cls(given, dense, gpu.upload(values.astype(dtype, copy=False)), element=ELEMENTS[dtype])


def dense_type(given: Given) -> np.dtype:
    """Read the type of the dense operands, which is that of the result.

    Raises:
        Unsupported: it is neither float32 nor float16, nor bits of bfloat16, or there are several.
    """
    first, dtype = next((name, array.dtype) for name, array in given.dense.items())
    for name, array in given.dense.items():
        if array.dtype not in ELEMENTS:
            raise Unsupported(f"{name} is {array.dtype}: the kernels take float32 or float16, convert it")
        if array.dtype != dtype:
            raise Unsupported(f"{name} is {array.dtype} and {first} {dtype}: the kernels take one type, convert it")
    return dtype


def element_macro(element: str) -> dict[str, str]:
    """Name the type of elements for a source; float is what it takes without."""
    return {} if element == "float" else {"ELEMENT": element}


def columns_argument(columns: int) -> np.int32:
    """Make an argument of a number of columns.

    Raises:
        Unsupported: there are so many that the kernels have no numbers for them.
    """
    if columns > MOST_COLUMNS:
        raise Unsupported(f"{columns} columns, above {MOST_COLUMNS}, which the kernels count in int32")
    return np.int32(columns)


Rival = Callable[[Placed, Any], Call]
"""Binds somebody else's kernel to operands and a result on the device, to be timed between ours."""


@dataclass(frozen=True)
class Launch:
    """A kernel with all that it is started with."""

    kernel: Kernel
    shape: LaunchShape
    arguments: tuple[Any, ...]

    def __call__(self) -> None:
        self.kernel(self.shape, self.arguments)


class Launches:
    """Launches, one after the other."""

    def __init__(self, launches: list[Launch]) -> None:
        self._launches = launches

    def __call__(self) -> None:
        for launch in self._launches:
            launch()

    def takes(self, array: Any) -> bool:
        """Tell whether an array is an argument of one of them."""
        return any(argument is array for launch in self._launches for argument in launch.arguments)

    def point(self, arrays: Sequence[tuple[Any, Any]]) -> None:
        """Exchange arguments: pairs of an array and of the one in its place, of the same shape."""
        place = {id(old): new for old, new in arrays}
        self._launches = [replace(launch, arguments=tuple([
            place.get(id(argument), argument) for argument in launch.arguments])) for launch in self._launches]


def in_order(launches: list[Launch], gpu: Gpu) -> Launches:
    """Make a call of launches; those without blocks are left out.

    Raises:
        Unsupported: the device cannot start one of them; says which limit it breaks.
    """
    filled = [launch for launch in launches if min(launch.shape.grid) > 0]
    for launch in filled:
        shape = launch.shape
        known = LaunchShape(shape.grid, shape.threads, shape.shared_bytes, launch.kernel.registers)
        reason = gpu.device.refuse(known)
        if reason is not None:
            raise Unsupported(f"a launch needs {reason}")

    return Launches(filled)


class Family(Protocol):
    """Kernels of one operation: which there are, and how one is bound to arrays of a device."""

    def space(self) -> ConfigSpace:
        """List the configurations; needs no device."""

    def result(self, gpu: Gpu, given: Given) -> Any:
        """Allocate what a kernel overwrites."""

    def bind(self, gpu: Gpu, placed: Placed, config: Config, result: Any) -> Call:
        """Bind the kernels of a legal configuration; what they need besides is made here, which nobody times."""

    def check(self, op: Op, given: Given, *, seed: int) -> HostCheck:
        """Know the result, or a part of it, in float64."""
