"""Platforms that run operations: processors, GPUs and a simulated accelerator behind one interface.

platform: that interface; clock and timing: how seconds are measured; cpu_schedules: generated C for schedules of a loop
nest; cpu_kernels and cuda: hand-written kernels; roofline: the least seconds that caches and arithmetic allow; spade:
the simulated accelerator.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "clock": (
        "Repeat", "Repetition", "Stopwatch", "in_series", "keep_threads_awake", "one_by_one", "processor_clock"),
    "cpu_kernels.kernels": ("CpuKernels", "GemmKernels"),
    "cpu_kernels.sparse_kernels": ("SPARSE_FAMILIES", "SpmmKernels", "SpmmMaxKernels"),
    "cpu_schedules.many_cores": ("ManyCorePlatform",),
    "cpu_schedules.platform": ("CpuPlatform",),
    "cuda.device": ("CudaDevice", "CupyGpu", "Gpu", "on_cuda"),
    "cuda.launch": ("DeviceKernels",),
    "cuda.operands": ("DeviceMatrix", "DevicePattern"),
    "cuda.platform": ("CudaPlatform",),
    "cuda.ragged": ("RaggedOnDevice",),
    "roofline": ("Bound", "PatternReuse", "ReuseDistances", "Roof", "Supply", "bound", "measure_roof"),
    "platform": ("BaselineBinder", "CustomPlatform", "Family", "Platform"),
    "spade.platform": ("SpadePlatform",),
    "timing": ("Contender", "SpotCheck", "interleaved", "interleaved_on_device", "reallocated", "sweep"),
})
