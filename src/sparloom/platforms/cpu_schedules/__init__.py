"""The CPU as a platform: storage, lowering, kernels, timing."""

from sparloom.platforms.cpu_schedules.platform import CpuPlatform

__all__ = ["CpuPlatform"]
