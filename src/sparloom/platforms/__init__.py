"""Where operations run: processors, GPUs and a simulated accelerator behind one interface.

platform: that interface; clock and timing: how seconds are measured; cpu_schedules: generated C for schedules of a loop
nest; cpu_kernels and cuda: hand-written kernels; spade: the simulated accelerator.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "EVENTS", "BaselineBinder", "Contender", "CpuKernels", "CpuPlatform", "CudaDevice", "CudaPlatform", "CupyGpu",
    "DeviceKernels", "DeviceMatrix", "DevicePattern", "Family", "GemmKernels", "Gpu", "NullPlatform", "Platform",
    "RaggedOnDevice", "Repeat", "Repetition", "SpadePlatform", "SpmmKernels", "SpmmMaxKernels", "SpotCheck",
    "Stopwatch", "count_reads", "cusparse_spmm", "in_series", "interleaved", "interleaved_on_device",
    "keep_threads_awake", "on_cuda", "one_by_one", "processor_clock", "reads_by_level", "reallocated", "sweep",
]

_MODULES = {
    "BaselineBinder": "sparloom.platforms.platform",
    "Contender": "sparloom.platforms.timing",
    "CpuKernels": "sparloom.platforms.cpu_kernels.kernels",
    "CpuPlatform": "sparloom.platforms.cpu_schedules.platform",
    "CudaDevice": "sparloom.platforms.cuda.device",
    "CudaPlatform": "sparloom.platforms.cuda.platform",
    "CupyGpu": "sparloom.platforms.cuda.device",
    "DeviceKernels": "sparloom.platforms.cuda.launch",
    "DeviceMatrix": "sparloom.platforms.cuda.operands",
    "DevicePattern": "sparloom.platforms.cuda.operands",
    "EVENTS": "sparloom.platforms.clock",
    "Family": "sparloom.platforms.platform",
    "GemmKernels": "sparloom.platforms.cpu_kernels.kernels",
    "Gpu": "sparloom.platforms.cuda.device",
    "NullPlatform": "sparloom.platforms.platform",
    "Platform": "sparloom.platforms.platform",
    "RaggedOnDevice": "sparloom.platforms.cuda.ragged",
    "Repeat": "sparloom.platforms.clock",
    "Repetition": "sparloom.platforms.clock",
    "SpadePlatform": "sparloom.platforms.spade.platform",
    "SpmmKernels": "sparloom.platforms.cpu_kernels.kernels",
    "SpmmMaxKernels": "sparloom.platforms.cpu_kernels.kernels",
    "SpotCheck": "sparloom.platforms.timing",
    "Stopwatch": "sparloom.platforms.clock",
    "count_reads": "sparloom.platforms.clock",
    "cusparse_spmm": "sparloom.platforms.cuda.sparse_kernels",
    "in_series": "sparloom.platforms.clock",
    "interleaved": "sparloom.platforms.timing",
    "interleaved_on_device": "sparloom.platforms.timing",
    "keep_threads_awake": "sparloom.platforms.clock",
    "on_cuda": "sparloom.platforms.cuda.device",
    "one_by_one": "sparloom.platforms.clock",
    "processor_clock": "sparloom.platforms.clock",
    "reads_by_level": "sparloom.platforms.clock",
    "reallocated": "sparloom.platforms.timing",
    "sweep": "sparloom.platforms.timing",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
