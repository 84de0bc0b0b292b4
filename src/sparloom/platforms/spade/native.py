"""The compiled simulator under kernels/spade/, compiled and loaded on first use."""

import ctypes
import functools
from collections.abc import Sequence

import numpy as np

from sparloom.jit import compile_cpp

__all__ = ["call", "library"]

SOURCES = ("spade/tiling.cpp", "spade/trace.cpp", "spade/timing.cpp", "spade/execute.cpp", "spade/event.cpp")


@functools.cache
def library() -> ctypes.CDLL:
    """Compile the sources, or take them from the cache on disk."""
    return compile_cpp(SOURCES)


def call(name: str, arguments: Sequence[np.ndarray | int | None]) -> int:
    """Call a C function of int64 values and pointers; None is a null pointer.

    Arrays must be C-contiguous; their element types are those that the source file states.

    Raises:
        MemoryError: there is no memory for what the function keeps besides.
    """
    function = getattr(library(), name)
    function.restype = ctypes.c_int64
    converted = []
    for argument in arguments:
        if argument is None:
            converted.append(ctypes.c_void_p())
        elif isinstance(argument, np.ndarray):
            assert argument.flags.c_contiguous, f"{name}: an array is not contiguous"
            converted.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            converted.append(ctypes.c_int64(argument))
    found = function(*converted)
    if found < 0:
        raise MemoryError(f"no memory to simulate {name.removeprefix('spade_')} on arrays of "
                          f"{sum(each.nbytes for each in arguments if isinstance(each, np.ndarray)) / 2**20:.1f} MiB: "
                          f"free some, or raise the limit of this process")
    return found
