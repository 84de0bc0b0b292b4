"""Launches of kernels: one kernel with its arguments, sequences of them, and calls that can be pointed elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ops import Op, Operands
from sparloom.platforms.cuda.device import CompiledKernel, Gpu, LaunchShape
from sparloom.platforms.cuda.operands import ELEMENTS, DeviceOperands, dense_type
from sparloom.platforms.platform import Inputs
from sparloom.platforms.timing import Call
from sparloom.space import Config, ConfigSpace

HostCheck = Callable[[np.ndarray], None]
"""Compares a result on the host with the oracle; raises AssertionError."""

BaselineBinder = Callable[[DeviceOperands, Any], Call]
"""Binds a kernel of another library to operands and a result on the device, to be timed among ours."""


class Family(Protocol):
    """The kernels of one operation on a device: its configurations, and how one is bound to arrays."""

    def space(self) -> ConfigSpace:
        """List the configurations; needs no device."""

    def result(self, gpu: Gpu, inputs: Inputs) -> Any:
        """Allocate the array that a kernel overwrites."""

    def compile(self, inputs: Inputs, configs: Sequence[Config]) -> None:
        """Compile kernels that take so long that they are worth several processes."""

    def bind(self, gpu: Gpu, operands: DeviceOperands, config: Config, result: Any) -> Call:
        """Bind the kernels of a legal configuration; whatever else they need is made here, untimed."""

    def check(self, op: Op, inputs: Inputs, *, seed: int) -> HostCheck:
        """Make a check that compares a result, or part of it, with the float64 oracle."""


@dataclass(frozen=True)
class Launch:
    """A kernel with its launch shape and arguments."""

    kernel: CompiledKernel
    shape: LaunchShape
    arguments: tuple[Any, ...]

    def __call__(self) -> None:
        self.kernel(self.shape, self.arguments)


class Launches:
    """Launches that run one after the other."""

    def __init__(self, launches: list[Launch]) -> None:
        self._launches = launches

    @classmethod
    def checked(cls, launches: list[Launch], gpu: Gpu) -> Launches:
        """Make a call of the launches that have blocks; raises Unsupported if the device cannot start one."""
        filled = [launch for launch in launches if min(launch.shape.grid) > 0]
        for launch in filled:
            reason = gpu.device.refuse(replace(launch.shape, registers=launch.kernel.registers))
            if reason is not None:
                raise Unsupported(f"a launch needs {reason}")
        return cls(filled)

    def __call__(self) -> None:
        for launch in self._launches:
            launch()

    def takes(self, array: Any) -> bool:
        """Tell whether an array is an argument of one of them."""
        return any(argument is array for launch in self._launches for argument in launch.arguments)

    def point(self, arrays: Sequence[tuple[Any, Any]]) -> None:
        """Replace arguments: pairs of an array and the array that takes its place, of the same shape."""
        successor = {id(old): new for old, new in arrays}
        self._launches = [replace(launch, arguments=tuple([
            successor.get(id(argument), argument) for argument in launch.arguments])) for launch in self._launches]


class BoundCall:
    """A call of kernels that can be pointed to other arrays.

    Args:
        call: bound to `arrays`.
        arrays: values, dense operands and results; no two are the same object.
        values: the array of which the values are a view.
    """

    def __init__(self, call: Call, config: Config, arrays: tuple[Any, ...], values: Any) -> None:
        self.config = config
        self._call, self._arrays, self._values = call, arrays, values
        self._free = tuple(object() for _ in arrays)  # placeholders in the launches while no arrays are lent
        found = [isinstance(call, Launches) and call.takes(array) for array in arrays]
        self._reads_values, self._movable = found[0], all(found[1:])

    def __call__(self) -> None:
        self._call()

    def moved(self, arrays: tuple[Any, ...], values: Any) -> bool:
        """Point the call to other arrays; False if a kernel reads something derived from them, so that it cannot."""
        if not self._movable or not (self._reads_values or values is self._values):
            return False
        self._call.point(list(zip(self._arrays, arrays, strict=True)))
        self._arrays, self._values = arrays, values if self._reads_values else self._values
        return True

    @property
    def lent(self) -> tuple[Any, ...]:
        """The arrays; set to () when their owners take them back."""
        return () if self._arrays is self._free else self._arrays

    @lent.setter
    def lent(self, arrays: tuple[()]) -> None:
        if self._movable:
            self.moved(self._free, self._values)


class DeviceKernels:
    """A family of CUDA kernels on one device, with the methods that `sparloom.platforms.Family` has on a CPU.

    Operands consist of a `DeviceMatrix` and dense arrays of the device.
    """

    def __init__(self, gpu: Gpu, family: Family) -> None:
        self.gpu, self._family = gpu, family

    def space(self) -> ConfigSpace:
        """List the configurations."""
        return self._family.space()

    def result(self, operands: Operands) -> Any:
        """Allocate the array that a kernel overwrites."""
        return self._family.result(self.gpu, operands)

    def argmax(self, operands: Operands) -> Any:
        """Allocate the argmax of a maximum of products."""
        return self._family.argmax(self.gpu, operands)

    def bind(self, operands: Operands, config: Config, *results: Any) -> BoundCall:
        """Bind the kernels of a legal configuration.

        Args:
            results: the arrays that they overwrite: the result, and if wanted the argmax of a maximum.

        Raises:
            Unsupported: the device cannot start them; names the limit that they exceed.
            ValueError: the family refuses the operands.
        """
        matrix, count = operands.matrix, len(operands.dense)
        values, *others = arrays = _views(operands, results)
        host = Operands(matrix, dict(zip(operands.dense, others[:count], strict=True)))
        bound = DeviceOperands(host, host.dense, values, matrix.placed, ELEMENTS[dense_type(host)])
        call = self._family.bind(self.gpu, bound, config, *others[count:])
        return BoundCall(call, config, arrays, matrix.values)

    def rebind(self, bound: BoundCall, operands: Operands, *results: Any) -> None:
        """Point a call to other arrays of the same shapes and types; bind it anew where that is impossible."""
        if not bound.moved(_views(operands, results), operands.matrix.values):
            vars(bound).update(vars(self.bind(operands, bound.config, *results)))


def _views(operands: Operands, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """List values, dense operands and results as objects of their own, because one array may be given twice."""
    return tuple([array[...] for array in (operands.matrix.values, *operands.dense.values(), *results)])
