"""Ragged programs on a GPU; docs/gpu_status.md says what has run on one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparloom.platforms.cuda.device import Gpu, LaunchShape
from sparloom.ragged import DeviceProgram, Program, Structure

THREADS = 128  # of a block
BLOCKS = 16  # per multiprocessor; each takes more than one iteration where there are more


class RaggedOnDevice:
    """A ragged program compiled for a GPU, for any batch.

    Args:
        gpu: the device.
        program: as for `DeviceProgram`.

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
            A call that launches all kernels in order, and the storage of every tensor on the device.

        Raises:
            TypeError, ValueError: as `sparloom.ragged.Executable.bind`.
        """
        calls, storage = self._form.bind(structure, self._gpu.upload, **arrays)

        def run(bound: Sequence[tuple[str, list[Any]]] = tuple(calls.items())) -> None:
            for name, arguments in bound:
                self._kernels[name](self._shape, arguments)

        return run, storage
