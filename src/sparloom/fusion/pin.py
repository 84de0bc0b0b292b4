"""Threads that stay on their processors while something is measured."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sparloom.jit import compile_cpp

__all__ = ["pinned"]


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Bind the threads of compiled code, the calling one included, each to a processor, close to each other.

    Threads that others start inside inherit the processor of their parent. Without effect but on Linux.

    Raises:
        ValueError: more threads than processors that this process may use.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    cpus = np.array(sorted(os.sched_getaffinity(0)), dtype=np.int32)
    if not 1 <= threads <= cpus.size:
        raise ValueError(f"{threads} threads on {cpus.size} processors: give between 1 and {cpus.size}")
    pin = compile_cpp(["cpu/pin.cpp"]).sparloom_pin
    pin.restype, pin.argtypes = None, [ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    pin(threads, cpus.ctypes.data, cpus.size, 0)
    try:
        yield
    finally:
        pin(threads, cpus.ctypes.data, cpus.size, 1)
