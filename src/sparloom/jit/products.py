"""What rendered C calls for a product of tiles: kernels/cpu/multiply.cpp."""

import ctypes
from functools import cache

from sparloom.jit.cpp import compile_cpp

__all__ = ["set_products"]

FUNCTIONS = ("multiply_f32", "multiply_f64", "multiply_panels_f32", "multiply_panels_f64")


def set_products(handle: ctypes.CDLL) -> None:
    """Let a library that has products of tiles know the functions that compute them."""
    for name in FUNCTIONS:
        setter = f"sparloom_set_{name}"
        if hasattr(handle, setter):
            getattr(handle, setter)(ctypes.cast(getattr(_products(), f"sparloom_{name}"), ctypes.c_void_p))


@cache
def _products() -> ctypes.CDLL:
    return compile_cpp(["cpu/multiply.cpp"])
