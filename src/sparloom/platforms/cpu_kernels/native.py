"""A compiled kernel with its arguments: called from Python, or repeated without Python in between."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from sparloom.jit import compile_cpp
from sparloom.platforms.clock import Repeat, Repetition

__all__ = ["NativeCall", "address"]


class NativeCall:
    """A C function `void run(const void* arguments)` with one struct of arguments.

    Args:
        run: the function, as ctypes gives it.
        arguments: its struct, filled.
        kept: arrays whose addresses the struct holds.
    """

    def __init__(self, run: Any, arguments: ctypes.Structure, *, kept: Sequence[Any]) -> None:
        run.restype, run.argtypes = None, [ctypes.c_void_p]
        self._run = run
        self._arguments = arguments
        self._kept = tuple(kept)

    def __call__(self) -> None:
        self._run(ctypes.byref(self._arguments))

    def repeat(self, clocks: Sequence[int]) -> Repeat:
        """Time runs in a loop of C.

        Args:
            clocks: of the threads that run, see `thread_clocks`.
        """
        numbers, repeat = (ctypes.c_int32 * len(clocks))(*clocks), _repeat_function()

        def timed(seconds: float) -> Repetition:
            spent = _Spent()
            repeat(self._run, ctypes.byref(self._arguments), seconds, numbers, len(clocks), ctypes.byref(spent))
            return Repetition(spent.wall / spent.runs, spent.processor / spent.runs, spent.runs)

        return timed


def address(array: np.ndarray, dtype: type[np.generic] = np.float32, *, written: bool = False) -> int:
    """Give the address of an array for a struct of arguments.

    Raises:
        ValueError: another dtype, not contiguous, or read-only though it is written.
    """
    if array.dtype != dtype or not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(f"an array of {array.dtype} with strides {array.strides} is no contiguous array of "
                         f"{np.dtype(dtype)}: pass np.ascontiguousarray(array, np.{np.dtype(dtype)})")
    if written and not array.flags.writeable:
        raise ValueError("the result is read-only: pass a copy")
    return array.ctypes.data


class _Spent(ctypes.Structure):
    _fields_ = (("wall", ctypes.c_double), ("processor", ctypes.c_double), ("runs", ctypes.c_int64))


@cache
def _repeat_function() -> Callable[..., None]:
    function = compile_cpp(["cpu/repeat.cpp"]).sparloom_repeat
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_int32,
                         ctypes.c_void_p]
    return function
