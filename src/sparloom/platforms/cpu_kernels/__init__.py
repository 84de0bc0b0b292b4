"""Hand-written kernels of the CPU this runs on, chosen by parameters: GEMM, SpMM, its maximum, SDDMM and attention.

rows: how the rows of the sparse operand are ordered and shared among threads; kernels: the kernels bound to arrays,
and the platform that measures them.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "CpuKernels", "GemmKernels", "SparseCall", "SpmmKernels", "SpmmMaxKernels", "Traversal",
]

_MODULES = {
    "CpuKernels": "sparloom.platforms.cpu_kernels.kernels",
    "GemmKernels": "sparloom.platforms.cpu_kernels.kernels",
    "SparseCall": "sparloom.platforms.cpu_kernels.kernels",
    "SpmmKernels": "sparloom.platforms.cpu_kernels.kernels",
    "SpmmMaxKernels": "sparloom.platforms.cpu_kernels.kernels",
    "Traversal": "sparloom.platforms.cpu_kernels.rows",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
