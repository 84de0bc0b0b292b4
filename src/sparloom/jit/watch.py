"""Arrays that must not be changed in place, watched at a cost that does not show."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from sparloom.jit.cpp import compile_cpp
from sparloom.jit.native import address

__all__ = ["Watch"]

WINDOW = 1024  # words of 4 bytes with one sum, as in kernels/cpu/watch.cpp
INDICES = (np.dtype(np.int32), np.dtype(np.int64))


class Watch:
    """Notices changes of index arrays; it takes sums of them now, and compares some of them at each call.

    A change of a large part is noticed at once, one of a single element within 32 calls; in the first calls, and in
    arrays of up to 1024 elements, each one. The arrays are not kept alive: those that are gone are watched no more.
    Copies of this watch nothing.

    Args:
        arrays: by the names that they have in messages; those that are not contiguous or of other types than int32 and
            int64 are left out.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        watched = {name: array for name, array in arrays.items() if array.dtype in INDICES and array.size
                   and array.flags.c_contiguous and array.flags.aligned}
        self._names = tuple(watched)
        words = [array.nbytes // 4 for array in watched.values()]
        self._sums = [np.empty(-(-count // WINDOW), np.uint64) for count in words]
        self._arrays = (_Watched * len(watched))(*(
            _Watched(address(array, array.dtype.type), count, address(sums, np.uint64))
            for array, count, sums in zip(watched.values(), words, self._sums, strict=True)))
        self._watch = watch = _Watch(ctypes.addressof(self._arrays), len(watched), 0, 0)
        # NumPy sets the count to 0 before it frees an array, moves none that is referred to, and C looks under the GIL
        self._references = tuple(weakref.ref(array, partial(_forget, each))
                                 for array, each in zip(watched.values(), self._arrays, strict=True))
        self.changed: Callable[[], int] = partial(_library().sparloom_changed, ctypes.byref(watch))
        """Give the number of an array that is not as it was, from 1; 0 where none was found. A function of C: quick."""
        if watched:
            _library().sparloom_watch(ctypes.byref(watch))

    def __reduce__(self) -> tuple[type[Watch], tuple[dict[str, np.ndarray]]]:
        return Watch, ({},)

    def name(self, number: int) -> str:
        """Name the array of a number that `changed` gave."""
        return self._names[number - 1]


class _Watched(ctypes.Structure):
    """The struct of the same name in kernels/cpu/watch.cpp."""

    _fields_ = (("words", ctypes.c_void_p), ("count", ctypes.c_int64), ("sums", ctypes.c_void_p))


class _Watch(ctypes.Structure):
    """The struct Watch of kernels/cpu/watch.cpp."""

    _fields_ = (("arrays", ctypes.c_void_p), ("count", ctypes.c_int64), ("calls", ctypes.c_int64),
                ("differs", ctypes.c_int32))


def _forget(array: _Watched, _: weakref.ref) -> None:
    array.count = 0


@cache
def _library() -> Any:
    library = ctypes.PyDLL(compile_cpp(["cpu/watch.cpp"])._name)
    library.sparloom_changed.restype = ctypes.c_int32
    library.sparloom_watch.restype = None
    library.sparloom_changed.argtypes = library.sparloom_watch.argtypes = [ctypes.c_void_p]
    return library
