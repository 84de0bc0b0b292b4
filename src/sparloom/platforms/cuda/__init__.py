"""NVIDIA GPUs: hand-written kernels that are compiled on first use.

device: limits of a GPU, which need none, and its memory, kernels and clock through CuPy; operands: arrays on a device;
launch: kernels with arguments; sparse_kernels and triton_gemm: the families; platform: measures them; ragged: ragged
programs.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "device": ("CudaDevice", "LaunchShape"),
    "operands": (
        "BITS", "ELEMENTS", "MAX_COLUMNS", "DeviceMatrix", "DeviceOperands", "DevicePattern", "HubThresholds",
        "PatternCache", "as_float32", "columns_argument", "element_macro"),
    "platform": ("CudaPlatform",),
    "sparse_kernels": ("ARGMAX_THREADS", "COMBINE", "MOST_SHARE", "AttentionProgram", "SddmmProgram", "SpmmKernels",
                       "SpmmProgram"),
    "triton_gemm": ("CompiledGemm", "Tiling", "compile_gemm", "gemm_kernel"),
})
