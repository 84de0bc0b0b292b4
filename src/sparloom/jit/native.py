"""Native calls: functions with a struct of arguments, caches keyed by the arrays that they read, a pool of results."""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from sparloom.errors import NoCompiler
from sparloom.jit.toolchain import compile_cpp

HEADER = object.__basicsize__  # bytes of the header of every Python object
ALIGNMENT = 4096  # a page, so that timings do not depend on the allocation and vectors straddle no cache line

WINDOW = 1024  # words of 4 bytes per checksum, as in kernels/cpu/watch.cpp
INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


Value = TypeVar("Value")


class IdentityCache(Generic[Value]):
    """Cache of values computed from index arrays, keyed by the identity of these arrays, which it references weakly.

    The cost of a lookup does not depend on the size of the arrays. In return, an index array must not be changed in
    place between calls.

    Args:
        capacity: maximum number of entries; the oldest is evicted.
    """

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[Any, ...], tuple[tuple[weakref.ref, ...], Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, arrays: Sequence[Any], details: tuple[Any, ...]) -> Value | None:
        """Return the value for these very arrays; None if it is missing."""
        references, value = self._entries.get((*map(id, arrays), *details), (None, None))
        return None if references is None or any(map(_is_other, references, arrays)) else value

    def get(self, arrays: Sequence[Any], details: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """Return the value for these very arrays; make it if it is missing.

        Args:
            details: all else that the value depends on, hashable.
        """
        value = self.find(arrays, details)
        if value is None:
            value = make()
            self._entries[*map(id, arrays), *details] = (tuple(map(weakref.ref, arrays)), value)
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        return value

    def invalidate(self, arrays: Sequence[Any], is_valid: Callable[[Value], bool]) -> None:
        """Drop the entries for these arrays, whatever the details, that are no longer valid."""
        prefix = tuple(map(id, arrays))
        for key in list(self._entries):
            _, value = self._entries.get(key, (None, None))
            if key[:len(prefix)] == prefix and value is not None and not is_valid(value):
                self._entries.pop(key, None)


def _is_other(reference: weakref.ref, array: Any) -> bool:
    return reference() is not array


class NativeCall:
    """A C function `void run(const void* arguments)` with one struct of arguments.

    Args:
        run: the function, as ctypes returns it.
        arguments: its struct, filled in.
        kept: arrays whose addresses the struct holds; they live as long as the call.
    """

    lent: tuple[Any, ...] = ()
    """Arrays that the caller may replace; kept alive while they are needed."""

    def __init__(self, run: Any, arguments: ctypes.Structure, *, kept: Sequence[Any]) -> None:
        run.restype, run.argtypes = None, [ctypes.c_void_p]
        self.run = run
        self.arguments = arguments
        self._given = ctypes.byref(arguments)
        self._kept = tuple(kept)

    def __call__(self) -> None:
        self.run(self._given)

    def release(self) -> None:
        """Forget the arrays that the caller may replace; they must be given again before the next call."""
        self.lent = ()


def check_memory(status: int, work: str, wanted: int) -> None:
    """Raise a MemoryError if a compiled function reports that it got no memory.

    Args:
        status: 0 for success.
        work: what it does: "cut the loops into tiles".
        wanted: bytes that it needs, approximately.

    Raises:
        MemoryError: `status` is not 0.
    """
    if status:
        raise MemoryError(f"no memory to {work}, which takes about {wanted / 2**20:.1f} MiB: free some, or raise the "
                          f"limit of this process")


def address(array: np.ndarray, dtype: DTypeLike = np.float32, *, written: bool = False) -> int:
    """Return the address of an array for a struct of arguments.

    Raises:
        ValueError: another dtype, not contiguous, or read-only although it is written.
    """
    flags, own = array.flags, array.dtype
    matches = (own.type is dtype and own.isnative) or own == dtype  # the first check is quick and usually sufficient
    if not matches or not flags.c_contiguous or not flags.aligned:
        raise ValueError(f"an array of {array.dtype} with strides {array.strides} is not a contiguous array of "
                         f"{np.dtype(dtype)}: pass np.ascontiguousarray(array, np.{np.dtype(dtype)})")
    if written and not flags.writeable:
        raise ValueError("the result is read-only: pass a copy")
    return address_of(array)


def aligned(shape: tuple[int, ...], dtype: DTypeLike, *, zero: bool = False) -> np.ndarray:
    """Allocate a page-aligned array; NumPy requests huge pages for large ones."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = (np.zeros if zero else np.empty)(size + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, buffer, -address_of(buffer) % ALIGNMENT)


def _interface_address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _header_address(array: np.ndarray) -> int:
    """Read the first field after the object header, which is the data pointer in NumPy's binary interface.

    `__array_interface__` builds a dictionary, which takes longer than some kernels.
    """
    return ctypes.c_size_t.from_address(id(array) + HEADER).value


def _header_is_readable() -> bool:
    """Return whether objects of this interpreter have the layout that `_header_address` assumes."""
    arrays = [np.empty(1), np.empty((3, 5), np.float32)[1:]]
    return sys.implementation.name == "cpython" and all(
        _header_address(array) == _interface_address(array) for array in arrays)


address_of = _header_address if _header_is_readable() else _interface_address
"""Return the address of the data of an array, whatever its type."""


class ChangeDetector:
    """Detects in-place changes of index arrays, by comparing checksums of a few parts at each call.

    A change of a large part is detected at the next call, one of a single element within 32 calls; in the first calls,
    and in arrays of up to 1024 elements, at the next call. Arrays are not kept alive; those that are gone are ignored.
    Copies of a detector detect nothing, nor does any where no compiler is installed.

    Args:
        arrays: by their names for messages; those that are not contiguous int32 or int64 arrays are ignored.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        library = _library()
        watched = {name: array for name, array in arrays.items() if library is not None
                   and array.dtype in INDEX_DTYPES and array.size and array.flags.c_contiguous and array.flags.aligned}
        self._names = tuple(watched)
        words = [array.nbytes // 4 for array in watched.values()]
        self._sums = [np.empty(-(-count // WINDOW), np.uint64) for count in words]
        self._arrays = (_CWatched * len(watched))(*(
            _CWatched(address(array, array.dtype.type), count, address(sums, np.uint64))
            for array, count, sums in zip(watched.values(), words, self._sums, strict=True)))
        self._watch = watch = _CWatch(ctypes.addressof(self._arrays), len(watched), 0, 0)
        self.address = ctypes.addressof(watch) if watched else 0
        """Address of the struct Watch of kernels/cpu/arguments.hpp; 0 if no array is watched."""
        # the weak reference sets the count to 0 before the array is freed, and C reads it while holding the GIL
        self._references = tuple(weakref.ref(array, partial(_forget, each))
                                 for array, each in zip(watched.values(), self._arrays, strict=True))
        self.changed: Callable[[], int] = _no_change if library is None else partial(
            library.sparloom_changed, ctypes.byref(watch))
        """Return the number of a changed array, counted from 1, or 0. A C function, because every call runs it."""
        if watched:
            library.sparloom_watch(ctypes.byref(watch))

    def __reduce__(self) -> tuple[type[ChangeDetector], tuple[dict[str, np.ndarray]]]:
        return ChangeDetector, ({},)

    def name(self, number: int) -> str:
        """Return the name of the array of a number that `changed` returned."""
        return self._names[number - 1]


class _CWatched(ctypes.Structure):
    """The struct Watched of kernels/cpu/arguments.hpp."""

    _fields_ = (("words", ctypes.c_void_p), ("count", ctypes.c_int64), ("sums", ctypes.c_void_p))


class _CWatch(ctypes.Structure):
    """The struct Watch of kernels/cpu/arguments.hpp."""

    _fields_ = (("arrays", ctypes.c_void_p), ("count", ctypes.c_int64), ("calls", ctypes.c_int64),
                ("differs", ctypes.c_int32))


def _no_change() -> int:
    return 0


def _forget(array: _CWatched, _: weakref.ref) -> None:
    array.count = 0


@cache
def _library() -> Any:
    """Load the functions of the detector; None without a compiler."""
    try:
        library = ctypes.PyDLL(compile_cpp(["cpu/watch.cpp"])._name)
    except NoCompiler:
        return None
    library.sparloom_changed.restype = ctypes.c_int32
    library.sparloom_watch.restype = None
    library.sparloom_changed.argtypes = library.sparloom_watch.argtypes = [ctypes.c_void_p]
    return library
