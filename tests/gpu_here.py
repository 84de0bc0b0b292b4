"""Marker of tests that run kernels through CuPy; they are skipped without a GPU."""

import pytest

from sparloom.errors import Unsupported
from sparloom.platforms import CudaDevice

__all__ = ["has_gpu", "on_a_gpu"]


def has_gpu() -> bool:
    try:
        CudaDevice.here()
    except Unsupported:
        return False
    return True


on_a_gpu = pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU with CuPy")
