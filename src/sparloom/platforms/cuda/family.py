"""What the platform asks of the kernels of one operation on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ops import DenseOperands, Op, Operands
from sparloom.platforms.cuda.csr import DevicePattern
from sparloom.platforms.cuda.device import LaunchShape
from sparloom.platforms.cuda.elements import BITS, ELEMENTS
from sparloom.platforms.cuda.gpu import Gpu, Kernel
from sparloom.platforms.sweep import Call
from sparloom.space import Config, ConfigSpace

__all__ = ["MOST_COLUMNS", "Family", "Given", "HostCheck", "Launch", "Launches", "Placed", "Rival", "columns_argument",
           "dense_type", "element_macro", "in_order"]

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
    def on(cls, gpu: Gpu, given: Given) -> "Placed":
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
