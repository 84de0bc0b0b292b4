"""NVIDIA GPUs: hand-written kernels compiled when they are first used, and what can be known without a device."""

from sparloom.platforms.cuda.device import CudaDevice, LaunchShape
from sparloom.platforms.cuda.platform import CudaPlatform

__all__ = ["CudaDevice", "CudaPlatform", "LaunchShape"]
