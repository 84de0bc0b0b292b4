"""The triangular product of cuBLAS, which neither CuPy nor PyTorch offers.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

import ctypes
from collections.abc import Callable
from ctypes.util import find_library
from functools import cache

from sparloom.errors import Unsupported

__all__ = ["cublas_strmm"]

VERSIONS = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")
RIGHT, UPPER, PLAIN, NON_UNIT = 1, 1, 0, 0  # cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t


def cublas_strmm(size: int, lower: int, dense: int, result: int) -> Callable[[], None]:
    """Bind result = lower dense for row-major (size, size) float32 matrices of the current device.

    cuBLAS takes columns, in which a row-major matrix is its transpose: resultT = denseT lowerT, lowerT being upper
    triangular.

    Args:
        lower, dense, result: addresses on the device; above the diagonal `lower` is not read.

    Raises:
        Unsupported: there is no cuBLAS, or it refuses.
    """
    library, handle = _library(), _handle()
    one = ctypes.c_float(1.0)

    def call() -> None:
        _checked(library.cublasStrmm_v2(
            handle, RIGHT, UPPER, PLAIN, NON_UNIT, size, size, ctypes.byref(one), ctypes.c_void_p(lower), size,
            ctypes.c_void_p(dense), size, ctypes.c_void_p(result), size), "cublasStrmm_v2")

    return call


@cache
def _library() -> ctypes.CDLL:
    """Take the one that PyTorch or CuPy has loaded, if one has."""
    for name in (*VERSIONS, find_library("cublas")):
        try:
            return ctypes.CDLL(name) if name else _missing()
        except OSError:
            continue
    return _missing()


def _missing() -> ctypes.CDLL:
    raise Unsupported(f"cuBLAS is not to be found as {', '.join(VERSIONS)}: install the CUDA toolkit, or put the "
                      "folder of its wheel into LD_LIBRARY_PATH")


@cache
def _handle() -> ctypes.c_void_p:
    """Make a handle that works on the stream where kernels of others do that name none."""
    handle = ctypes.c_void_p()
    _checked(_library().cublasCreate_v2(ctypes.byref(handle)), "cublasCreate_v2")
    return handle


def _checked(status: int, name: str) -> None:
    if status:
        raise Unsupported(f"{name} gives status {status}")
