"""Programs as CUDA text, and what their kernels are called with, wherever the arrays lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparloom.ir import DTYPES, render_cuda
from sparloom.ragged.executable import arguments, bound_arrays
from sparloom.ragged.lower import lower
from sparloom.ragged.program import Program
from sparloom.ragged.structure import Structure

__all__ = ["DeviceProgram"]


class DeviceProgram:
    """A program for a GPU; nothing is compiled here.

    Args:
        program: with a parallel loop at the top of every launch, such as `device_encoder_layer` gives.

    Raises:
        Unsupported: a launch has no CUDA form.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._lowered = lower(program)
        self.texts: Mapping[str, str] = {each.kernel.name: render_cuda(each.kernel) for each in self._lowered}
        """Kernel -> its source, in the order of the launches."""

    def bind(
        self, structure: Structure, upload: Callable[[np.ndarray], Any], **arrays: np.ndarray,
    ) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Bring everything to the device.

        Args:
            structure: lengths of this batch; tables that it lacks are made on the processor.
            upload: copies an array to the device.
            arrays: tensors by name, as for `Executable.bind`; those that are missing are made, full of zeros.

        Returns:
            Kernel -> its arguments, arrays of the device and NumPy scalars; tensor -> its storage on the device.

        Raises:
            TypeError, ValueError: as `Executable.bind`.
        """
        here = bound_arrays(self.program, structure, arrays)
        there = {name: upload(array) for name, array in here.items()}
        tables: dict[int, Any] = {}  # by the table itself, which kernels share
        calls = {}
        for each in self._lowered:
            found = calls[each.kernel.name] = []
            for param, value in zip(each.kernel.params, arguments(each, structure, here).values(), strict=True):
                if not param.buffer:
                    found.append(np.dtype(DTYPES[param.type.scalar]).type(value))
                elif param.name in there:
                    found.append(there[param.name])
                else:
                    if id(value) not in tables:
                        tables[id(value)] = upload(value)
                    found.append(tables[id(value)])
        return calls, there
