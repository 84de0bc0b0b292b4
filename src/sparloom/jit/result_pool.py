"""Results that take the memory of results that are no more."""

import math
import sys

import numpy as np

from sparloom.jit.native import aligned
from sparloom.measure import usable_memory

__all__ = ["RESULTS", "ResultPool"]

LEAST_BYTES = 1 << 18  # what is smaller the allocator has at hand
MOST = 32  # results that are known at a time: every call looks through them


class ResultPool:
    """Allocates arrays; their memory is used again when the last array, and tensor, on it is gone.

    Fresh memory costs a page fault every 4096 bytes, and to be cleared; this may take longer than to compute what goes
    there. Threads may share a pool, and a signal handler or finaliser may call it while it is in use: no lock is held,
    and memory is taken out of the pool by one operation that the interpreter does not interrupt.

    Args:
        share: of the memory of the machine or container, which may be known here; of more, or of more than 32 results,
            what was given first is forgotten: it goes back to the system with the last array on it.
    """

    def __init__(self, share: float) -> None:
        self._share, self._kept_bytes = share, share * usable_memory()
        self._rooms: dict[int, np.ndarray] = {}  # by id: all memory of one array each, in the order of use

    def __reduce__(self) -> tuple[type["ResultPool"], tuple[float]]:
        """Copy and pickle the share alone: results stay where they are."""
        return ResultPool, (self._share,)

    def empty(self, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        """Give a contiguous array at the start of a page, with any content, that nothing else refers to."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if not LEAST_BYTES <= size <= self._kept_bytes:
            return aligned(shape, dtype)
        return self._room(size).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Forget all memory."""
        self._rooms.clear()

    def _room(self, size: int) -> np.ndarray:
        """Give bytes that no array but those here refers to."""
        for place, known in list(self._rooms.items()):  # a copy: what interrupts the loop may change them
            if known.size == size and _holders(known) == ALONE:
                room = self._rooms.pop(place, None)
                if room is None:  # whoever interrupted this since has taken it
                    continue
                if room.size == size and _holders(room) == ALONE:
                    break
                self._rooms[place] = room  # likewise, and gave it to its caller
        else:
            room = aligned((size,), np.uint8)
        given = room.view()  # refers to the memory before the pool knows it again
        self._rooms[id(room)] = room
        self._forget()
        return given

    def _forget(self) -> None:
        """Drop what was given first, as far as there is too much."""
        rooms = list(self._rooms.items())
        count, total = len(rooms), sum(room.size for _, room in rooms)
        for place, room in rooms:
            if count <= MOST and total <= self._kept_bytes:
                break
            self._rooms.pop(place, None)
            count, total = count - 1, total - room.size


def _holders(room: np.ndarray) -> int:
    """Count what refers to the memory of an array: NumPy makes all arrays on it refer to the one that owns it."""
    return sys.getrefcount(room.base)


ALONE = _holders(aligned((1,), np.uint8))

RESULTS = ResultPool(1 / 32)
"""That of the sparse operations of this process."""
