"""Hand-written kernels of the CPU this runs on, chosen by parameters: GEMM, SpMM, its maximum, SDDMM and attention.

rows: how the rows of the sparse operand are ordered and shared among threads; kernels: the kernels bound to arrays,
and the platform that measures them.
"""

from sparloom.platforms.cpu_kernels.kernels import CpuKernels

__all__ = ["CpuKernels"]
