"""NVIDIA GPUs: hand-written kernels that are compiled on first use.

device: limits of a GPU, which need none, and its memory, kernels and clock through CuPy; operands: arrays on a device;
launch: kernels with arguments; sparse_kernels and triton_gemm: the families; platform: measures them; ragged: ragged
programs.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "BITS", "COMBINE", "ELEMENTS", "AttentionProgram", "CudaDevice", "CudaPlatform", "DeviceMatrix", "DeviceOperands",
    "DevicePattern", "HubThresholds", "LaunchShape", "SddmmProgram", "SpmmProgram", "as_float32",
]

_MODULES = {
    "AttentionProgram": "sparloom.platforms.cuda.sparse_kernels",
    "BITS": "sparloom.platforms.cuda.operands",
    "COMBINE": "sparloom.platforms.cuda.sparse_kernels",
    "CudaDevice": "sparloom.platforms.cuda.device",
    "CudaPlatform": "sparloom.platforms.cuda.platform",
    "DeviceMatrix": "sparloom.platforms.cuda.operands",
    "DeviceOperands": "sparloom.platforms.cuda.operands",
    "DevicePattern": "sparloom.platforms.cuda.operands",
    "ELEMENTS": "sparloom.platforms.cuda.operands",
    "HubThresholds": "sparloom.platforms.cuda.operands",
    "LaunchShape": "sparloom.platforms.cuda.device",
    "SddmmProgram": "sparloom.platforms.cuda.sparse_kernels",
    "SpmmProgram": "sparloom.platforms.cuda.sparse_kernels",
    "as_float32": "sparloom.platforms.cuda.operands",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
