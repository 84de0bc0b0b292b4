"""What an NVIDIA GPU offers a launch, known without one: configurations that cannot start are refused ahead of time."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from sparloom.errors import Unsupported

__all__ = ["CudaDevice", "LaunchShape"]

GRID_X, GRID_Y = 2**31 - 1, 2**16 - 1


@dataclass(frozen=True)
class LaunchShape:
    """What a launch asks for.

    Args:
        grid: blocks in x and y.
        threads: of a block.
        shared_bytes: of a block.
        registers: of a thread; 0 while unknown.
    """

    grid: tuple[int, int]
    threads: int
    shared_bytes: int = 0
    registers: int = 0


@dataclass(frozen=True)
class CudaDevice:
    """Limits of a device; bytes of shared memory are those a kernel gets when it asks for the most.

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
        """Take a device that need not be there, such as "h200".

        Raises:
            ValueError: it is not described here.
        """
        if name not in PRESETS:
            raise ValueError(f"device {name!r} is not described: {', '.join(PRESETS)}, or here for the one installed")
        return PRESETS[name]

    @classmethod
    def here(cls) -> "CudaDevice":
        """Read the current device.

        Raises:
            Unsupported: there is none, or CuPy is missing.
        """
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
    def check_here() -> None:
        """Refuse where there is no device; quick once there was one.

        Raises:
            Unsupported: there is none, or CuPy is missing; names the remedy.
        """
        _check_here()

    @property
    def architecture(self) -> str:
        """Name for compilers: "sm_90"."""
        return f"sm_{self.compute_capability}"

    def refuse(self, shape: LaunchShape) -> str | None:
        """Say why a launch cannot start, or None."""
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


@cache
def _check_here() -> None:
    try:
        import cupy
    except ImportError as error:
        raise Unsupported(f"no CuPy ({error}): pip install -e \".[gpu]\" on a machine with an NVIDIA GPU") from error
    if not cupy.cuda.is_available():
        raise Unsupported("no NVIDIA GPU: name one to plan for, such as device=h200, or go to a machine that has one")


def _properties() -> dict[str, Any]:
    _check_here()
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)


def _short_name(name: str) -> str:
    """Read "NVIDIA A100-SXM4-40GB" as a100, as the presets are called; other names by their words."""
    words = name.lower().replace("-", " ").split()
    return next((word for word in words if word in PRESETS), "_".join(word for word in words if word != "nvidia"))
