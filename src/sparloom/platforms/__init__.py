"""Where operations run: real processors and simulated accelerators behind one interface."""

from sparloom.ondemand import on_demand

__all__ = [
    "CpuKernels", "CpuPlatform", "CudaDevice", "CudaPlatform", "CupyGpu", "DeviceKernels", "DeviceMatrix",
    "DevicePattern", "Family", "Gpu", "NullPlatform", "Platform", "RaggedOnDevice", "Rival", "SpadePlatform",
    "SpmmKernels", "SpmmMaxKernels", "count_reads", "cublas_strmm", "cusparse_spmm", "interleaved",
    "interleaved_on_device", "keep_threads_awake", "on_cuda", "reads_by_level", "reallocated",
]

_PLACES = {
    "CpuKernels": "sparloom.platforms.cpu_kernels",
    "CpuPlatform": "sparloom.platforms.cpu",
    "CudaDevice": "sparloom.platforms.cuda",
    "CudaPlatform": "sparloom.platforms.cuda",
    "CupyGpu": "sparloom.platforms.cuda.gpu",
    "DeviceKernels": "sparloom.platforms.cuda.device_kernels",
    "DeviceMatrix": "sparloom.platforms.cuda.csr",
    "DevicePattern": "sparloom.platforms.cuda.csr",
    "Family": "sparloom.platforms.cpu_kernels.family",
    "Gpu": "sparloom.platforms.cuda.gpu",
    "NullPlatform": "sparloom.platforms.null",
    "Platform": "sparloom.platforms.platform",
    "RaggedOnDevice": "sparloom.platforms.cuda.ragged",
    "Rival": "sparloom.platforms.cpu_kernels.family",
    "SpadePlatform": "sparloom.platforms.spade",
    "SpmmKernels": "sparloom.platforms.cpu_kernels.spmm",
    "SpmmMaxKernels": "sparloom.platforms.cpu_kernels.spmm_max",
    "count_reads": "sparloom.platforms.cache_counters",
    "cublas_strmm": "sparloom.platforms.cuda.cublas",
    "cusparse_spmm": "sparloom.platforms.cuda.cusparse",
    "interleaved": "sparloom.platforms.interleave",
    "interleaved_on_device": "sparloom.platforms.interleave",
    "keep_threads_awake": "sparloom.platforms.clock",
    "on_cuda": "sparloom.platforms.cuda.gpu",
    "reads_by_level": "sparloom.platforms.cache_counters",
    "reallocated": "sparloom.platforms.arrays",
}

__getattr__, __dir__ = on_demand(__name__, _PLACES)
