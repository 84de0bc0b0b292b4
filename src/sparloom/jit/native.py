"""Compiled functions that take one struct of arguments, and the arrays whose addresses stand in it.

Results that take the memory of results that are no more.

Arrays that must not be changed in place, watched at a cost that does not show.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from sparloom.jit.compile import compile_cpp
from sparloom.measure import usable_memory

__all__ = ["RESULT_POOL", "ChangeDetector", "NativeCall", "ResultPool", "address", "aligned", "check_memory"]

HEADER = object.__basicsize__  # bytes of what every Python object begins with
ALIGNMENT = 4096  # bytes: arrays start at a page, so that every allocation starts alike and vectors straddle no line


class NativeCall:
    """A C function `void run(const void* arguments)` with one struct of arguments.

    Args:
        run: the function, as ctypes gives it.
        arguments: its struct, filled.
        kept: arrays whose addresses the struct holds, for good.
    """

    lent: tuple[Any, ...] = ()
    """Arrays that others may take the place of, while they are needed."""

    def __init__(self, run: Any, arguments: ctypes.Structure, *, kept: Sequence[Any]) -> None:
        run.restype, run.argtypes = None, [ctypes.c_void_p]
        self.run = run
        self.arguments = arguments
        self._given = ctypes.byref(arguments)
        self._kept = tuple(kept)

    def __call__(self) -> None:
        self.run(self._given)


def check_memory(status: int, work: str, wanted: int) -> None:
    """Tell what a compiled function got no memory for, if its status says so.

    Args:
        status: 0 where it got what it needed.
        work: what it does: "cut the loops into tiles".
        wanted: bytes that it takes, about.

    Raises:
        MemoryError: `status` is not 0.
    """
    if status:
        raise MemoryError(f"no memory to {work}, which takes about {wanted / 2**20:.1f} MiB: free some, or raise the "
                          f"limit of this process")


def address(array: np.ndarray, dtype: type[np.generic] = np.float32, *, written: bool = False) -> int:
    """Give the address of an array for a struct of arguments.

    Raises:
        ValueError: another dtype, not contiguous, or read-only though it is written.
    """
    flags, own = array.flags, array.dtype
    same = (own.type is dtype and own.isnative) or own == dtype  # the first is what it mostly is, and quick to ask
    if not same or not flags.c_contiguous or not flags.aligned:
        raise ValueError(f"an array of {array.dtype} with strides {array.strides} is no contiguous array of "
                         f"{np.dtype(dtype)}: pass np.ascontiguousarray(array, np.{np.dtype(dtype)})")
    if written and not flags.writeable:
        raise ValueError("the result is read-only: pass a copy")
    return _address_of(array)


def aligned(shape: tuple[int, ...], dtype: type[np.generic], *, zero: bool = False) -> np.ndarray:
    """Allocate an array that starts at a page; NumPy asks for huge pages where they are to be had and it is large."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = (np.zeros if zero else np.empty)(size + ALIGNMENT, dtype=np.uint8)
    start = -_address_of(room) % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def _interface_address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _header_address(array: np.ndarray) -> int:
    """Read the first field behind the header of the object, which is the address by NumPy's binary interface.

    `__array_interface__` makes a dictionary of all there is, which takes longer than some kernels.
    """
    return ctypes.c_size_t.from_address(id(array) + HEADER).value


def _header_is_readable() -> bool:
    """Whether objects lie in this interpreter as the one above takes for granted."""
    arrays = [np.empty(1), np.empty((3, 5), np.float32)[1:]]
    return sys.implementation.name == "cpython" and all(
        _header_address(array) == _interface_address(array) for array in arrays)


_address_of = _header_address if _header_is_readable() else _interface_address


MIN_BYTES = 1 << 18  # what is smaller the allocator has at hand
MAX_RESULTS = 32  # results that are known at a time: every call looks through them


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

    def __reduce__(self) -> tuple[type[ResultPool], tuple[float]]:
        """Copy and pickle the share alone: results stay where they are."""
        return ResultPool, (self._share,)

    def empty(self, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        """Give a contiguous array at the start of a page, with any content, that nothing else refers to."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if not MIN_BYTES <= size <= self._kept_bytes:
            return aligned(shape, dtype)
        return self._room(size).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Forget all memory."""
        self._rooms.clear()

    def _room(self, size: int) -> np.ndarray:
        """Give bytes that no array but those here refers to."""
        for place, known in list(self._rooms.items()):  # a copy: what interrupts the loop may change them
            if known.size == size and _references(known) == UNSHARED:
                room = self._rooms.pop(place, None)
                if room is None:  # whoever interrupted this since has taken it
                    continue
                if room.size == size and _references(room) == UNSHARED:
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
            if count <= MAX_RESULTS and total <= self._kept_bytes:
                break
            self._rooms.pop(place, None)
            count, total = count - 1, total - room.size


def _references(room: np.ndarray) -> int:
    """Count what refers to the memory of an array: NumPy makes all arrays on it refer to the one that owns it."""
    return sys.getrefcount(room.base)


UNSHARED = _references(aligned((1,), np.uint8))

RESULT_POOL = ResultPool(1 / 32)
"""That of the sparse operations of this process."""


WINDOW = 1024  # words of 4 bytes with one sum, as in kernels/cpu/watch.cpp
INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


class ChangeDetector:
    """Notices changes of index arrays; it takes sums of them now, and compares some of them at each call.

    A change of a large part is noticed at once, one of a single element within 32 calls; in the first calls, and in
    arrays of up to 1024 elements, each one. The arrays are not kept alive: those that are gone are watched no more.
    Copies of this watch nothing.

    Args:
        arrays: by the names that they have in messages; those that are not contiguous or of other types than int32 and
            int64 are left out.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        watched = {name: array for name, array in arrays.items() if array.dtype in INDEX_DTYPES and array.size
                   and array.flags.c_contiguous and array.flags.aligned}
        self._names = tuple(watched)
        words = [array.nbytes // 4 for array in watched.values()]
        self._sums = [np.empty(-(-count // WINDOW), np.uint64) for count in words]
        self._arrays = (_CWatched * len(watched))(*(
            _CWatched(address(array, array.dtype.type), count, address(sums, np.uint64))
            for array, count, sums in zip(watched.values(), words, self._sums, strict=True)))
        self._watch = watch = _CWatch(ctypes.addressof(self._arrays), len(watched), 0, 0)
        # NumPy sets the count to 0 before it frees an array, moves none that is referred to, and C looks under the GIL
        self._references = tuple(weakref.ref(array, partial(_forget, each))
                                 for array, each in zip(watched.values(), self._arrays, strict=True))
        self.changed: Callable[[], int] = partial(_library().sparloom_changed, ctypes.byref(watch))
        """Give the number of an array that is not as it was, from 1; 0 where none was found. A function of C: quick."""
        if watched:
            _library().sparloom_watch(ctypes.byref(watch))

    def __reduce__(self) -> tuple[type[ChangeDetector], tuple[dict[str, np.ndarray]]]:
        return ChangeDetector, ({},)

    def name(self, number: int) -> str:
        """Name the array of a number that `changed` gave."""
        return self._names[number - 1]


class _CWatched(ctypes.Structure):
    """The struct of the same name in kernels/cpu/watch.cpp."""

    _fields_ = (("words", ctypes.c_void_p), ("count", ctypes.c_int64), ("sums", ctypes.c_void_p))


class _CWatch(ctypes.Structure):
    """The struct Watch of kernels/cpu/watch.cpp."""

    _fields_ = (("arrays", ctypes.c_void_p), ("count", ctypes.c_int64), ("calls", ctypes.c_int64),
                ("differs", ctypes.c_int32))


def _forget(array: _CWatched, _: weakref.ref) -> None:
    array.count = 0


@cache
def _library() -> Any:
    library = ctypes.PyDLL(compile_cpp(["cpu/watch.cpp"])._name)
    library.sparloom_changed.restype = ctypes.c_int32
    library.sparloom_watch.restype = None
    library.sparloom_changed.argtypes = library.sparloom_watch.argtypes = [ctypes.c_void_p]
    return library
