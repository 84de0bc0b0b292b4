"""Products of which every element takes one nonzero of its row: kernels/cpu/at_places.cpp bound to tensors.

For A (rows, cols), and places (rows, width) that say which nonzero p of A each element takes, in column j:

    spmm_at              D(i, f)  = values(p) X(j, f)
    spmm_transposed_at   D(j, f) += values(p) Y(i, f)
    sddmm_at             D(p)    += Y(i, f) X(j, f)

The second and the third are gradients of the maximum of products, the first is what their own gradients need besides.
Each costs rows * width visits of X or D where the places point, however many nonzeros there are, and makes nothing
but its result. The second, which adds to rows of D in any order, gives each thread columns of it, 16 at least; where
there are fewer of these than threads, several visit the same places for rows of their own. Sums do not depend on the
number of threads.
"""

import ctypes
from functools import cache

import numpy as np
import torch

from sparloom.jit import NativeCall, address, aligned, compile_cpp

__all__ = ["sddmm_at", "spmm_at", "spmm_transposed_at"]


def spmm_at(
    places: torch.Tensor, indices: np.ndarray, values: torch.Tensor, right: torch.Tensor, *, threads: int,
) -> torch.Tensor:
    """Gather: D (rows, width), 0 in rows without nonzeros.

    Args:
        places: (rows, width) int32, -1 in rows without nonzeros.
        indices: (nnz,) int32, columns of A.
        values: (nnz,) float32.
        right: X (cols, width) float32.
    """
    result = aligned(tuple(places.shape), np.float32)
    _run("spmm_at", places, result, indices=indices, values=values, right=right, cols=right.shape[0], threads=threads)
    return torch.from_numpy(result)


def spmm_transposed_at(
    places: torch.Tensor, indices: np.ndarray, values: torch.Tensor, left: torch.Tensor, *, cols: int, threads: int,
) -> torch.Tensor:
    """Scatter: D (cols, width), for Y (rows, width); else as `spmm_at`."""
    result = aligned((cols, places.shape[1]), np.float32, zero=True)
    _run("spmm_transposed_at", places, result, indices=indices, values=values, left=left, cols=cols, threads=threads)
    return torch.from_numpy(result)


def sddmm_at(
    places: torch.Tensor, indices: np.ndarray, left: torch.Tensor, right: torch.Tensor, *, threads: int,
) -> torch.Tensor:
    """Add up what each nonzero is the place of: D (nnz,), for Y (rows, width), X (cols, width); else as `spmm_at`."""
    result = aligned(indices.shape, np.float32, zero=True)
    _run("sddmm_at", places, result, indices=indices, left=left, right=right, cols=right.shape[0], threads=threads)
    return torch.from_numpy(result)


class _Arguments(ctypes.Structure):
    """The struct AtPlaces of kernels/cpu/at_places.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("places", "indices", "values", "left", "right", "result")),
        *((name, ctypes.c_int64) for name in ("rows", "cols", "width")),
        ("threads", ctypes.c_int32),
    )


def _run(
    name: str, places: torch.Tensor, result: np.ndarray, *, indices: np.ndarray, threads: int, cols: int,
    **given: torch.Tensor,
) -> None:
    rows, width = places.shape
    if not width:
        return
    at = _array(places)
    arrays = {operand: _array(tensor) for operand, tensor in given.items()}
    arguments = _Arguments(
        places=address(at, np.int32), indices=address(indices, np.int32), result=address(result, written=True),
        rows=rows, cols=cols, width=width, threads=threads,
        **{operand: address(array) for operand, array in arrays.items()})
    NativeCall(getattr(_library(), f"sparloom_{name}"), arguments, kept=(at, arrays))()


def _array(tensor: torch.Tensor) -> np.ndarray:
    """View a tensor as an array without gaps, or a copy where it is none."""
    return np.require(tensor.numpy(force=True), requirements=["C", "A"])


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/at_places.cpp"])
