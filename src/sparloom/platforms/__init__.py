"""Where operations run: real processors and simulated accelerators behind one interface."""

from sparloom.ondemand import on_demand

__all__ = [
    "CpuKernels", "CpuPlatform", "CudaDevice", "CudaPlatform", "Family", "NullPlatform", "Platform", "RaggedOnDevice",
    "Rival", "SpadePlatform", "SpmmKernels", "SpmmMaxKernels", "count_reads", "interleaved", "keep_threads_awake",
    "reads_by_level", "reallocated",
]

_PLACES = {
    "CpuKernels": "sparloom.platforms.cpu_kernels",
    "CpuPlatform": "sparloom.platforms.cpu",
    "CudaDevice": "sparloom.platforms.cuda",
    "CudaPlatform": "sparloom.platforms.cuda",
    "Family": "sparloom.platforms.cpu_kernels.family",
    "NullPlatform": "sparloom.platforms.null",
    "Platform": "sparloom.platforms.platform",
    "RaggedOnDevice": "sparloom.platforms.cuda.ragged",
    "Rival": "sparloom.platforms.cpu_kernels.family",
    "SpadePlatform": "sparloom.platforms.spade",
    "SpmmKernels": "sparloom.platforms.cpu_kernels.spmm",
    "SpmmMaxKernels": "sparloom.platforms.cpu_kernels.spmm_max",
    "count_reads": "sparloom.platforms.cache_counters",
    "interleaved": "sparloom.platforms.interleave",
    "keep_threads_awake": "sparloom.platforms.clock",
    "reads_by_level": "sparloom.platforms.cache_counters",
    "reallocated": "sparloom.platforms.arrays",
}

__getattr__, __dir__ = on_demand(__name__, _PLACES)
