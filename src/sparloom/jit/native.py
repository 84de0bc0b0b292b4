"""Compiled functions that take one struct of arguments, and the arrays whose addresses stand in it."""

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["NativeCall", "address", "aligned", "check_memory"]

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
    return _place(array)


def aligned(shape: tuple[int, ...], dtype: type[np.generic], *, zero: bool = False) -> np.ndarray:
    """Allocate an array that starts at a page; NumPy asks for huge pages where they are to be had and it is large."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = (np.zeros if zero else np.empty)(size + ALIGNMENT, dtype=np.uint8)
    start = -_place(room) % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def _told_place(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _read_place(array: np.ndarray) -> int:
    """Read the first field behind the header of the object, which is the address by NumPy's binary interface.

    `__array_interface__` makes a dictionary of all there is, which takes longer than some kernels.
    """
    return ctypes.c_size_t.from_address(id(array) + HEADER).value


def _readable() -> bool:
    """Whether objects lie in this interpreter as the one above takes for granted."""
    arrays = [np.empty(1), np.empty((3, 5), np.float32)[1:]]
    return sys.implementation.name == "cpython" and all(_read_place(each) == _told_place(each) for each in arrays)


_place = _read_place if _readable() else _told_place
