"""Where operations run: real processors and simulated accelerators behind one interface."""

from importlib import import_module
from typing import Any

__all__ = [
    "CpuKernels", "CpuPlatform", "CudaDevice", "CudaPlatform", "Family", "NullPlatform", "Platform", "Rival",
    "SpadePlatform", "SpmmKernels", "count_reads", "interleaved", "keep_threads_awake", "reads_by_level",
    "reallocated",
]

_PLACES = {
    "CpuKernels": "sparloom.platforms.cpu_kernels",
    "CpuPlatform": "sparloom.platforms.cpu",
    "CudaDevice": "sparloom.platforms.cuda",
    "CudaPlatform": "sparloom.platforms.cuda",
    "Family": "sparloom.platforms.cpu_kernels.family",
    "NullPlatform": "sparloom.platforms.null",
    "Platform": "sparloom.platforms.platform",
    "Rival": "sparloom.platforms.cpu_kernels.family",
    "SpadePlatform": "sparloom.platforms.spade",
    "SpmmKernels": "sparloom.platforms.cpu_kernels.spmm",
    "count_reads": "sparloom.platforms.cache_counters",
    "interleaved": "sparloom.platforms.interleave",
    "keep_threads_awake": "sparloom.platforms.clock",
    "reads_by_level": "sparloom.platforms.cache_counters",
    "reallocated": "sparloom.platforms.arrays",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
