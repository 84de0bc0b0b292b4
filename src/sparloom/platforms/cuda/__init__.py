"""NVIDIA GPUs: hand-written kernels that are compiled on first use.

device: limits of a GPU, which need none, and its memory, kernels and clock through CuPy; operands: arrays on a device;
launch: kernels with arguments; sparse_kernels and triton_gemm: the families; platform: measures them; ragged: ragged
programs.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "ARGMAX_THREADS", "BITS", "COMBINE", "ELEMENTS", "MAX_COLUMNS", "AttentionProgram", "CompiledGemm",
    "CudaDevice", "CudaPlatform", "DeviceMatrix", "DeviceOperands", "DevicePattern", "HubThresholds", "LaunchShape",
    "PatternCache", "SddmmProgram", "SpmmKernels", "SpmmProgram", "Tiling", "as_float32", "columns_argument",
    "compile_gemm", "element_macro", "gemm_kernel",
]

_MODULES = {
    "ARGMAX_THREADS": "sparloom.platforms.cuda.sparse_kernels",
    "AttentionProgram": "sparloom.platforms.cuda.sparse_kernels",
    "BITS": "sparloom.platforms.cuda.operands",
    "COMBINE": "sparloom.platforms.cuda.sparse_kernels",
    "CompiledGemm": "sparloom.platforms.cuda.triton_gemm",
    "CudaDevice": "sparloom.platforms.cuda.device",
    "CudaPlatform": "sparloom.platforms.cuda.platform",
    "DeviceMatrix": "sparloom.platforms.cuda.operands",
    "DeviceOperands": "sparloom.platforms.cuda.operands",
    "DevicePattern": "sparloom.platforms.cuda.operands",
    "ELEMENTS": "sparloom.platforms.cuda.operands",
    "HubThresholds": "sparloom.platforms.cuda.operands",
    "LaunchShape": "sparloom.platforms.cuda.device",
    "MAX_COLUMNS": "sparloom.platforms.cuda.operands",
    "PatternCache": "sparloom.platforms.cuda.operands",
    "SddmmProgram": "sparloom.platforms.cuda.sparse_kernels",
    "SpmmKernels": "sparloom.platforms.cuda.sparse_kernels",
    "SpmmProgram": "sparloom.platforms.cuda.sparse_kernels",
    "Tiling": "sparloom.platforms.cuda.triton_gemm",
    "as_float32": "sparloom.platforms.cuda.operands",
    "columns_argument": "sparloom.platforms.cuda.operands",
    "compile_gemm": "sparloom.platforms.cuda.triton_gemm",
    "element_macro": "sparloom.platforms.cuda.operands",
    "gemm_kernel": "sparloom.platforms.cuda.triton_gemm",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
