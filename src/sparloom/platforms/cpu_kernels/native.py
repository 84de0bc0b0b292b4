"""A compiled kernel with its arguments, repeated without Python in between."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

from sparloom.jit import NativeCall, compile_cpp
from sparloom.platforms.clock import Repeat, Repetition, in_series, processor_clock, thread_clocks
from sparloom.platforms.sweep import Call

__all__ = ["repeat_of", "repeated"]


def repeat_of(call: Call) -> Repeat:
    """Time a call that has run once: its threads have begun, so their clocks exist."""
    return repeated(call, thread_clocks()) if isinstance(call, NativeCall) else in_series(call, processor_clock())


def repeated(call: NativeCall, clocks: Sequence[int]) -> Repeat:
    """Time runs in a loop of C.

    Args:
        clocks: of the threads that run, see `thread_clocks`.
    """
    numbers, repeat = (ctypes.c_int32 * len(clocks))(*clocks), _repeat_function()

    def timed(seconds: float) -> Repetition:
        spent = _Spent()
        repeat(call.run, ctypes.byref(call.arguments), seconds, numbers, len(clocks), ctypes.byref(spent))
        return Repetition(spent.wall / spent.runs, spent.processor / spent.runs, spent.runs)

    return timed


class _Spent(ctypes.Structure):
    _fields_ = (("wall", ctypes.c_double), ("processor", ctypes.c_double), ("runs", ctypes.c_int64))


@cache
def _repeat_function() -> Callable[..., None]:
    function = compile_cpp(["cpu/repeat.cpp"]).sparloom_repeat
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_int32,
                         ctypes.c_void_p]
    return function
