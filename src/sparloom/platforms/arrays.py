"""Arrays that kernels read and write: they start at a page, so that every allocation starts alike."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from sparloom.ops import DenseOperands, Operands

__all__ = ["aligned", "reallocated"]

ALIGNMENT = 4096  # bytes: vectors never straddle cache lines

Given = TypeVar("Given", Operands, DenseOperands)


def aligned(shape: tuple[int, ...], dtype: type[np.generic], *, zero: bool = False) -> np.ndarray:
    """Allocate an array that starts at a page."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = (np.zeros if zero else np.empty)(size + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def reallocated(operands: Given) -> Given:
    """Copy the dense operands to new pages."""
    dense = {}
    for name, array in operands.dense.items():
        dense[name] = aligned(array.shape, np.float32)
        dense[name][...] = array
    return replace(operands, dense=dense)
