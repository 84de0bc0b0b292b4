"""Kernels written by hand, chosen by parameters: GEMM, SpMM and SDDMM on the CPU this runs on."""

from sparloom.platforms.cpu_kernels.platform import CpuKernels

__all__ = ["CpuKernels"]
