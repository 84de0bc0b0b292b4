"""Results that take the memory of results that are no more."""

import math
import sys
from threading import Lock

import numpy as np

from sparloom.jit.native import aligned
from sparloom.measure import usable_memory

__all__ = ["RESULTS", "ResultPool"]

LEAST_BYTES = 1 << 18  # what is smaller the allocator has at hand
MOST = 32  # results that are known at a time: every call looks through them


class ResultPool:
    """Allocates arrays; their memory is used again when the last array, and tensor, on it is gone.

    Fresh memory costs a page fault every 4096 bytes, and to be cleared; this may take longer than to compute what goes
    there. Threads may share a pool.

    Args:
        share: of the memory of the machine or container, which may be known here; of more, or of more than 32 results,
            what was given first is forgotten: it goes back to the system with the last array on it.
    """

    def __init__(self, share: float) -> None:
        self._kept_bytes = share * usable_memory()
        self._rooms: list[np.ndarray] = []  # views of all memory of one array each; what was given last at the end
        self._lock = Lock()

    def empty(self, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        """Give a contiguous array at the start of a page, with any content, that nothing else refers to."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if not LEAST_BYTES <= size <= self._kept_bytes:
            return aligned(shape, dtype)
        with self._lock:
            return self._room(size).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Forget all memory."""
        with self._lock:
            self._rooms.clear()

    def _room(self, size: int) -> np.ndarray:
        """Give bytes that no array but those here refers to."""
        for place, room in enumerate(self._rooms):
            if room.size == size and _holders(room) == ALONE:
                del self._rooms[place]
                break
        else:
            room = aligned((size,), np.uint8)
        self._rooms.append(room)
        while len(self._rooms) > MOST or sum(each.size for each in self._rooms) > self._kept_bytes:
            del self._rooms[0]
        return room


def _holders(room: np.ndarray) -> int:
    """Count what refers to the memory of an array: NumPy makes all arrays on it refer to the one that owns it."""
    return sys.getrefcount(room.base)


ALONE = _holders(aligned((1,), np.uint8))

RESULTS = ResultPool(1 / 32)
"""That of the sparse operations of this process."""
