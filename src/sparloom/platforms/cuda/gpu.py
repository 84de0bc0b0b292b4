"""The device as the platform uses it: memory, kernels and a clock, all through CuPy."""

import tempfile
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sparloom.errors import CompileError
from sparloom.platforms.clock import Repeat, Repetition
from sparloom.platforms.cuda.device import CudaDevice, LaunchShape

__all__ = ["CupyGpu", "Gpu", "Kernel"]

FLUSH_BYTES = 256 * 2**20  # several times any L2; takes 0.1 ms, in which the host queues the kernels behind it
TICK = 5e-7  # resolution of events in seconds
DEFAULT_SHARED_BYTES = 48 * 1024  # more must be asked for


class Kernel(Protocol):
    """A compiled kernel.

    Args:
        registers: of a thread.
    """

    registers: int

    def __call__(self, shape: LaunchShape, arguments: Sequence[Any]) -> None: ...


class Gpu(Protocol):
    """Arrays and kernels of a device; tests put an emulator here.

    Arguments of kernels are arrays of the device and NumPy scalars of the kernel's types.
    """

    device: CudaDevice

    def upload(self, array: np.ndarray) -> Any: ...

    def download(self, array: Any) -> np.ndarray: ...

    def empty(self, shape: tuple[int, ...], dtype: type) -> Any: ...

    def kernel(self, text: str, name: str) -> Kernel: ...

    def binary(self, content: bytes, name: str) -> Kernel: ...

    def repeat(self, call: Callable[[], None]) -> Repeat: ...


class CupyGpu:
    """The current device of CuPy."""

    def __init__(self) -> None:
        self.device = CudaDevice.here()

    def upload(self, array: np.ndarray) -> Any:
        import cupy

        return cupy.asarray(array)

    def download(self, array: Any) -> np.ndarray:
        return array.get()

    def empty(self, shape: tuple[int, ...], dtype: type) -> Any:
        import cupy

        return cupy.empty(shape, dtype)

    def kernel(self, text: str, name: str) -> Kernel:
        """Compile a source by NVRTC; the text is complete, see `cuda_text`."""
        return _CupyKernel(_module(text).get_function(name))

    def binary(self, content: bytes, name: str) -> Kernel:
        """Load a kernel that was compiled ahead of time for this architecture."""
        import cupy

        with tempfile.TemporaryDirectory(prefix="sparloom-") as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(content)
            return _CupyKernel(cupy.RawModule(path=str(path)).get_function(name))

    def repeat(self, call: Callable[[], None]) -> Repeat:
        """Time single runs by events, each with an L2 that holds nothing of the operands."""
        import cupy

        start, stop = cupy.cuda.Event(), cupy.cuda.Event()

        def timed(_: float) -> Repetition:
            self._ballast.fill(0)
            start.record()
            call()
            stop.record()
            stop.synchronize()
            seconds = max(1e-3 * cupy.cuda.get_elapsed_time(start, stop), TICK)
            return Repetition(seconds, seconds)

        return timed

    @cached_property
    def _ballast(self) -> Any:
        return self.empty((FLUSH_BYTES // 4,), np.float32)


class _CupyKernel:
    """A kernel in memory: asking for its registers loads it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.registers = int(function.num_regs)

    def __call__(self, shape: LaunchShape, arguments: Sequence[Any]) -> None:
        if shape.shared_bytes > DEFAULT_SHARED_BYTES:
            self._function.max_dynamic_shared_size_bytes = shape.shared_bytes
        self._function(shape.grid, (shape.threads,), tuple(arguments), shared_mem=shape.shared_bytes)


@cache
def _module(text: str) -> Any:
    import cupy

    try:
        module = cupy.RawModule(code=text, options=("--std=c++17",))
        module.compile()
    except cupy.cuda.compiler.CompileException as error:
        first = next((line for line in str(error).splitlines() if "error" in line), "no message")
        raise CompileError(f"NVRTC refused a kernel: {first.strip()}", source=text, log=str(error)) from None
    return module
