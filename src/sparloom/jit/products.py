"""What rendered C calls for a product of tiles: kernels/cpu/multiply.cpp."""

import ctypes
from functools import cache

from sparloom.jit.cpp import compile_cpp

__all__ = ["set_products"]

SCALARS = ("f32", "f64")


def set_products(handle: ctypes.CDLL) -> None:
    """Let a library that has products of tiles know the function that computes them."""
    for scalar in SCALARS:
        setter = f"sparloom_set_multiply_{scalar}"
        if hasattr(handle, setter):
            getattr(handle, setter)(ctypes.cast(getattr(_products(), f"sparloom_multiply_{scalar}"), ctypes.c_void_p))


@cache
def _products() -> ctypes.CDLL:
    return compile_cpp(["cpu/multiply.cpp"])
