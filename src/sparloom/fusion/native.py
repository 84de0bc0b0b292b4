"""The structs and functions of kernels/cpu/fused.hpp."""

import ctypes
from functools import cache

import numpy as np

from sparloom.jit import compile_cpp

__all__ = ["Atomic", "Csr", "Fused", "Tiles", "fused_library"]

SOURCES = {"float32": "cpu/fused_f32.cpp", "float64": "cpu/fused_f64.cpp"}


class Tiles(ctypes.Structure):
    """The struct of the same name in kernels/cpu/tiles.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "second", "second_ptr", "needed")),
        ("count", ctypes.c_int64 * 2),
        ("seconds", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("threads", "local")),
    )


class Csr(ctypes.Structure):
    """The struct of the same name in kernels/cpu/csr.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("begin", "end", "indices", "values")),
        ("nnz", ctypes.c_int64),
    )


class Fused(ctypes.Structure):
    """The struct of the same name in kernels/cpu/fused.hpp."""

    _fields_ = (
        ("tiles", Tiles),
        *((name, Csr) for name in ("a", "b")),
        *((name, ctypes.c_void_p) for name in (
            "dense_b", "c", "f", "g", "changes", "read", "write", "d1", "d", "packed", "buffers", "blas")),
        *((name, ctypes.c_int64) for name in ("rows", "inner", "width", "largest_tile", "ahead")),
        *((name, ctypes.c_int32) for name in ("together", "stream_first", "stream", "c_transposed")),
    )


class Atomic(ctypes.Structure):
    """The struct of the same name in kernels/cpu/fused_baselines.hpp."""

    _fields_ = (
        ("pair", Fused),
        *((name, ctypes.c_void_p) for name in ("crossing", "shared")),
        ("shared_rows", ctypes.c_int64),
    )


def fused_library(dtype: np.dtype) -> ctypes.CDLL:
    """Compile or find the products of one element type."""
    return _library(dtype.name)


@cache
def _library(name: str) -> ctypes.CDLL:
    library = compile_cpp([SOURCES[name]])
    library.sparloom_fused_buffer.restype = library.sparloom_fused_packed.restype = ctypes.c_int64
    return library
