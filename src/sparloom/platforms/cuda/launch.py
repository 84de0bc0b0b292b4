"""Kernels of one operation on operands that are on a device already: bound once, then pointed to other arrays.

Ragged programs on a GPU.

Nothing of this has run on one; see docs/gpu_status.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparloom.ops import Operands
from sparloom.platforms.cuda.device import Gpu, LaunchShape
from sparloom.platforms.cuda.operands import ELEMENTS, Family, Launches, Placed, dense_type
from sparloom.platforms.timing import Call
from sparloom.ragged import DeviceProgram, Program, Structure
from sparloom.space import Config, ConfigSpace

__all__ = ["BoundCall", "DeviceKernels", "RaggedOnDevice"]


class BoundCall:
    """A call of kernels that may be pointed to other arrays.

    Args:
        call: bound to `arrays`.
        arrays: values, dense operands and results; no two are the same object.
        values: what the values are a view of.
    """

    def __init__(self, call: Call, config: Config, arrays: tuple[Any, ...], values: Any) -> None:
        self.config = config
        self._call, self._arrays, self._values = call, arrays, values
        self._free = tuple(object() for _ in arrays)  # what stands in launches while nobody lends arrays
        found = [isinstance(call, Launches) and call.takes(array) for array in arrays]
        self._reads_values, self._movable = found[0], all(found[1:])

    def __call__(self) -> None:
        self._call()

    def moved(self, arrays: tuple[Any, ...], values: Any) -> bool:
        """Point the call to other arrays; False where that cannot be done, as a kernel reads something made of them."""
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
    """A family of CUDA kernels on one device, with the calls that `sparloom.platforms.Family` has for a CPU.

    Operands have a `DeviceMatrix` and dense arrays of the device.
    """

    def __init__(self, gpu: Gpu, family: Family) -> None:
        self.gpu, self._family = gpu, family

    def space(self) -> ConfigSpace:
        """List the configurations."""
        return self._family.space()

    def result(self, operands: Operands) -> Any:
        """Allocate what a kernel overwrites."""
        return self._family.result(self.gpu, operands)

    def places(self, operands: Operands) -> Any:
        """Allocate the places of the elements of a maximum."""
        return self._family.places(self.gpu, operands)

    def bind(self, operands: Operands, config: Config, *results: Any) -> BoundCall:
        """Bind the kernels of a legal configuration.

        Args:
            results: what they overwrite: the result, and where wanted the places of a maximum.

        Raises:
            Unsupported: the device cannot start them; says which limit they break.
            ValueError: as by the family.
        """
        matrix, count = operands.matrix, len(operands.dense)
        values, *others = arrays = _views(operands, results)
        given = Operands(matrix, dict(zip(operands.dense, others[:count], strict=True)))
        placed = Placed(given, given.dense, values, matrix.placed, ELEMENTS[dense_type(given)])
        call = self._family.bind(self.gpu, placed, config, *others[count:])
        return BoundCall(call, config, arrays, matrix.values)

    def rebind(self, bound: BoundCall, operands: Operands, *results: Any) -> None:
        """Point a call to other arrays of the same shapes and types; what cannot be pointed is bound anew."""
        if not bound.moved(_views(operands, results), operands.matrix.values):
            vars(bound).update(vars(self.bind(operands, bound.config, *results)))


def _views(operands: Operands, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """List values, dense operands and results, each as an object of its own: one array may be given twice."""
    return tuple([array[...] for array in (operands.matrix.values, *operands.dense.values(), *results)])


THREADS = 128  # of a block
BLOCKS = 16  # per multiprocessor; each takes more than one iteration where there are more


class RaggedOnDevice:
    """A program compiled for a GPU, for any batch.

    Args:
        gpu: the device.
        program: as `DeviceProgram` takes it.

    Raises:
        Unsupported: a launch has no CUDA form.
        CompileError: NVRTC refuses a kernel.
    """

    def __init__(self, gpu: Gpu, program: Program) -> None:
        self._gpu, self._form = gpu, DeviceProgram(program)
        self._kernels = {name: gpu.kernel(text, name) for name, text in self._form.texts.items()}
        self._shape = LaunchShape((BLOCKS * gpu.device.multiprocessors, 1), THREADS)

    def bind(self, structure: Structure, **arrays: np.ndarray) -> tuple[Callable[[], None], dict[str, Any]]:
        """Copy tensors and tables to the device.

        Args:
            structure: lengths of the batch.
            arrays: inputs by name, in their storage.

        Returns:
            A call that starts all kernels, one after the other, and the storage of every tensor on the device.

        Raises:
            TypeError, ValueError: as `sparloom.ragged.Executable.bind`.
        """
        calls, there = self._form.bind(structure, self._gpu.upload, **arrays)

        def run(bound: Sequence[tuple[str, list[Any]]] = tuple(calls.items())) -> None:
            for name, given in bound:
                self._kernels[name](self._shape, given)

        return run, there
