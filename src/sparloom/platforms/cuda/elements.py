"""Types of numbers that kernels take, in NumPy's words and in theirs: kernels/cuda/element.cuh."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

__all__ = ["BITS", "ELEMENTS", "widened"]

BITS = np.dtype(np.uint16)
"""What arrays of bfloat16 are here, as NumPy and CuPy have no such type."""

ELEMENTS: Mapping[np.dtype, str] = MappingProxyType({
    np.dtype(np.float32): "float", np.dtype(np.float16): "Half", BITS: "Bfloat"})


def widened(array: np.ndarray) -> np.ndarray:
    """Read numbers of any of these types as float32, exactly."""
    if array.dtype == BITS:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)
