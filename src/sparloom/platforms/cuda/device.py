"""An NVIDIA GPU: its limits, which are known without one, and its memory, kernels and clock through CuPy."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sparloom.errors import CompileError, Unsupported
from sparloom.files import scratch_folder
from sparloom.lazy import install_command
from sparloom.platforms.clock import Repeat, Repetition

GRID_X, GRID_Y = 2**31 - 1, 2**16 - 1  # most blocks
FLUSH_BYTES = 256 * 2**20  # several times any L2; takes 0.1 ms, during which the host queues the kernels
TICK = 5e-7  # resolution of events in seconds
DEFAULT_SHARED_BYTES = 48 * 1024  # more must be requested
ALIGNMENT = 16  # bytes, of the widest load
CUDA_MEMORY = (2, 13)  # kDLCUDA and kDLCUDAManaged of DLPack


@dataclass(frozen=True)
class LaunchShape:
    """Resources of a launch: blocks in x and y, those of a block, and registers of a thread (0: unknown)."""

    grid: tuple[int, int]
    threads: int
    shared_bytes: int = 0
    registers: int = 0


@dataclass(frozen=True)
class CudaDevice:
    """Limits of a device; the bytes of shared memory are the most that a kernel can request.

    Source: CUDA C++ Programming Guide, technical specifications per compute capability.
    """

    name: str
    compute_capability: int
    multiprocessors: int
    shared_per_block_bytes: int
    threads_per_block: int = 1024
    threads_per_multiprocessor: int = 2048
    registers_per_block: int = 65536
    registers_per_thread: int = 255

    @classmethod
    def named(cls, name: str) -> "CudaDevice":
        """Look up a device that need not be installed, such as "h200"; others raise ValueError."""
        if name not in PRESETS:
            raise ValueError(f"device {name!r} is not described: {', '.join(PRESETS)}, or here for the one installed")
        return PRESETS[name]

    @classmethod
    def here(cls) -> "CudaDevice":
        """Read the current device; raises Unsupported as `check_here` does."""
        properties = _properties()
        return cls(
            name=_short_name(properties["name"].decode()),
            compute_capability=10 * properties["major"] + properties["minor"],
            multiprocessors=properties["multiProcessorCount"],
            shared_per_block_bytes=properties["sharedMemPerBlockOptin"],
            threads_per_block=properties["maxThreadsPerBlock"],
            threads_per_multiprocessor=properties["maxThreadsPerMultiProcessor"],
            registers_per_block=properties["regsPerBlock"],
        )

    @staticmethod
    @cache
    def check_here() -> None:
        """Raise Unsupported, with the remedy, unless there are a device and CuPy; fast once there were."""
        try:
            import cupy
        except ImportError as error:
            remedy = f"{install_command('gpu')}, on a machine with an NVIDIA GPU"
            raise Unsupported(f"no CuPy ({error}): {remedy}") from error
        if not cupy.cuda.is_available():
            raise Unsupported("no NVIDIA GPU: name one to plan for, such as device=h200, or go to a machine that has "
                              "one")

    def refuse(self, shape: LaunchShape) -> str | None:
        """Name the limit that a launch exceeds, or None if it can start."""
        limits = (
            ("threads per block", shape.threads, self.threads_per_block),
            ("bytes of shared memory per block", shape.shared_bytes, self.shared_per_block_bytes),
            ("registers per thread", shape.registers, self.registers_per_thread),
            ("registers per block", shape.registers * shape.threads, self.registers_per_block),
            ("blocks in x", shape.grid[0], GRID_X),
            ("blocks in y", shape.grid[1], GRID_Y),
        )
        return next((f"{wanted} {what}, above the {limit} of {self.name}" for what, wanted, limit in limits
                     if wanted > limit), None)


PRESETS = {
    "a100": CudaDevice("a100", compute_capability=80, multiprocessors=108, shared_per_block_bytes=163 * 1024),
    "h100": CudaDevice("h100", compute_capability=90, multiprocessors=132, shared_per_block_bytes=227 * 1024),
    "h200": CudaDevice("h200", compute_capability=90, multiprocessors=132, shared_per_block_bytes=227 * 1024),
}


def on_cuda(array: Any) -> bool:
    """Tell whether an array of any library is on an NVIDIA GPU."""
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        return int(device()[0]) in CUDA_MEMORY
    return hasattr(array, "__cuda_array_interface__")


class CompiledKernel(Protocol):
    """Compiled kernel; a thread takes `registers` registers."""

    registers: int

    def __call__(self, shape: LaunchShape, arguments: Sequence[Any]) -> None: ...


class Gpu(Protocol):
    """Arrays and kernels of a device; tests substitute an emulator.

    Arguments of kernels are arrays of the device and NumPy scalars of the kernel's types.
    """

    device: CudaDevice

    def upload(self, array: np.ndarray) -> Any: ...

    def download(self, array: Any) -> np.ndarray: ...

    def empty(self, shape: tuple[int, ...], dtype: type) -> Any: ...

    def adopt(self, array: Any, name: str, *, copies: bool = True) -> Any:
        """View an array of any library on this device as a CuPy array.

        Args:
            copies: copy an array that has gaps or is not aligned for wide loads, instead of refusing it.

        Raises:
            TypeError: it is no array of this device; names where it is.
            ValueError: it would have to be copied and may not be.
        """

    def take(self, array: Any, rows: np.ndarray) -> Any:
        """Gather rows of an array of the device."""

    def overlap(self, one: Any, other: Any) -> bool:
        """Tell whether two arrays share memory."""

    def signature(self) -> Mapping[str, str | int]:
        """Describe the device and its software, as far as seconds depend on them."""

    def following(self, stream: int) -> AbstractContextManager[None]:
        """Make a context in which work goes to the stream of the device at this address."""

    def kernel(self, text: str, name: str) -> CompiledKernel: ...

    def binary(self, content: bytes, name: str) -> CompiledKernel: ...

    def repeat(self, call: Callable[[], None]) -> Repeat: ...


class CupyGpu:
    """The current device of CuPy."""

    def __init__(self) -> None:
        self.device = CudaDevice.here()

    @classmethod
    def current(cls) -> "CupyGpu":
        """Return the current device of CuPy, always the same object; raises as `CudaDevice.check_here`."""
        CudaDevice.check_here()
        import cupy

        return _gpu(cupy.cuda.Device().id)

    def upload(self, array: np.ndarray) -> Any:
        import cupy

        return cupy.asarray(array)

    def download(self, array: Any) -> np.ndarray:
        return array.get()

    def empty(self, shape: tuple[int, ...], dtype: type) -> Any:
        import cupy

        return cupy.empty(shape, dtype)

    def adopt(self, array: Any, name: str, *, copies: bool = True) -> Any:
        import cupy

        ours = _adopted(array, name)
        if ours.device.id != cupy.cuda.Device().id:
            raise TypeError(f"{name} is on GPU {ours.device.id} and the current device is GPU "
                            f"{cupy.cuda.Device().id}: call within cupy.cuda.Device({ours.device.id})")
        if ours.flags.c_contiguous and ours.data.ptr % ALIGNMENT == 0:
            return ours
        if not copies:
            raise ValueError(f"{name} has gaps, or is not aligned to {ALIGNMENT} bytes: give an array of its own")
        return ours.copy(order="C")

    def take(self, array: Any, rows: np.ndarray) -> Any:
        return array[self.upload(rows)]

    def overlap(self, one: Any, other: Any) -> bool:
        import cupy

        return bool(cupy.may_share_memory(one, other))

    def signature(self) -> Mapping[str, str | int]:
        import cupy

        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
        return {
            "name": properties["name"].decode(), "compute_capability": self.device.compute_capability,
            "multiprocessors": self.device.multiprocessors, "memory_bytes": int(properties["totalGlobalMem"]),
            "driver": runtime.driverGetVersion(), "cuda": runtime.runtimeGetVersion()}

    def following(self, stream: int) -> AbstractContextManager[None]:
        import cupy

        return cupy.cuda.Stream.from_external(_StreamAt(stream))

    def kernel(self, text: str, name: str) -> CompiledKernel:
        """Compile a source by NVRTC; the text is complete, see `cuda_text`."""
        return _CupyKernel(_module(text).get_function(name))

    def binary(self, content: bytes, name: str) -> CompiledKernel:
        """Load a kernel that was compiled ahead of time for this architecture."""
        import cupy

        with scratch_folder("compile") as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(content)
            return _CupyKernel(cupy.RawModule(path=str(path)).get_function(name))

    def repeat(self, call: Callable[[], None]) -> Repeat:
        """Time single runs by events, each with a flushed L2 cache."""
        import cupy

        start, stop = cupy.cuda.Event(), cupy.cuda.Event()

        def timed(_: float) -> Repetition:
            self._flush_buffer.fill(0)
            start.record()
            call()
            stop.record()
            stop.synchronize()
            seconds = max(1e-3 * cupy.cuda.get_elapsed_time(start, stop), TICK)
            return Repetition(seconds, seconds)

        return timed

    @cached_property
    def _flush_buffer(self) -> Any:
        return self.empty((FLUSH_BYTES // 4,), np.float32)


def _properties() -> dict[str, Any]:
    CudaDevice.check_here()
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)


def _short_name(name: str) -> str:
    """Shorten "NVIDIA A100-SXM4-40GB" to the preset's name a100; join the words of other names."""
    words = name.lower().replace("-", " ").split()
    return next((word for word in words if word in PRESETS), "_".join(word for word in words if word != "nvidia"))


def _adopted(array: Any, name: str) -> Any:
    import cupy

    if isinstance(array, cupy.ndarray):
        return array
    if not on_cuda(array):
        raise TypeError(f"{name} is {type(array).__name__}, not on the GPU: pass cupy.asarray({name}), or all operands "
                        "in the memory of the processor")
    return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)


@dataclass(frozen=True)
class _StreamAt:
    """A stream of another library, by its address, in the CUDA stream protocol."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


class _CupyKernel:
    """A kernel that is loaded when it is made, because its registers are read."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.registers = int(function.num_regs)

    def __call__(self, shape: LaunchShape, arguments: Sequence[Any]) -> None:
        if shape.shared_bytes > DEFAULT_SHARED_BYTES:
            self._function.max_dynamic_shared_size_bytes = shape.shared_bytes
        self._function(shape.grid, (shape.threads,), tuple(arguments), shared_mem=shape.shared_bytes)


@cache
def _gpu(number: int) -> CupyGpu:
    """Keep one object per device, which must be current at the first call."""
    return CupyGpu()


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
