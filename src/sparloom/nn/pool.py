"""Results that take the memory of results that are no more."""

import math
import weakref
from collections import defaultdict, deque

import numpy as np
import torch

from sparloom.jit import aligned

__all__ = ["Pool"]

LEAST_BYTES = 1 << 18  # what is smaller the allocator of torch has at hand
KEPT = 4  # buffers of one size that wait for the next use
NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}


class Pool:
    """Allocates tensors; memory comes back when the last tensor and array on it is gone.

    Fresh memory costs a page fault every 4096 bytes, which takes longer than to write it.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = defaultdict(lambda: deque(maxlen=KEPT))

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Give a contiguous tensor with any content that nothing else refers to."""
        number = NUMBERS[dtype]
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return torch.empty(shape, dtype=dtype)
        free = self._free[size]
        try:
            memory = free.pop()
        except IndexError:
            memory = aligned((size,), np.uint8)
        lent = memory.view(number).reshape(shape)
        weakref.finalize(lent, free.append, memory).atexit = False
        return torch.from_numpy(lent)
