"""What the platform asks of the kernels of one operation on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ops import DenseOperands, Op, Operands
from sparloom.platforms.cuda.csr import DevicePattern
from sparloom.platforms.cuda.device import LaunchShape
from sparloom.platforms.cuda.gpu import Gpu, Kernel
from sparloom.platforms.sweep import Call
from sparloom.space import Config, ConfigSpace

__all__ = ["Family", "Given", "HostCheck", "Launch", "Launches", "Placed", "Rival", "in_order"]

Given = Operands | DenseOperands

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
    """

    given: Given
    dense: Mapping[str, Any]
    values: Any | None
    pattern: DevicePattern | None = None

    @classmethod
    def on(cls, gpu: Gpu, given: Given) -> "Placed":
        """Copy to memory of the device that nothing else holds.

        Raises:
            Unsupported: an array is not float32.
        """
        arrays = dict(given.dense)
        values = given.matrix.values if isinstance(given, Operands) else None
        for name, array in (*arrays.items(), *([("the values", values)] if values is not None else [])):
            if array.dtype != np.float32:
                raise Unsupported(f"{name} is {array.dtype}: the kernels take float32, convert it")
        dense = {name: gpu.upload(np.ascontiguousarray(array)) for name, array in arrays.items()}
        return cls(given, dense, None if values is None else gpu.upload(values))


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
