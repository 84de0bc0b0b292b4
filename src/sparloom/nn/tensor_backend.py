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

The same by torch operations: on any device, with sums in float32, in any order.

Each makes some arrays of (rows, width) besides its result.

How tensors of a device get to the kernels there, and results back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch

from sparloom.jit import NativeCall, address, aligned, compile_cpp
from sparloom.nn.baselines import CUDA_SPARSE_LIBRARIES, SPARSE_LIBRARIES
from sparloom.nn.version_guard import as_bits, as_tensor
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.sparse import CudaBackend, Prepared

__all__ = [
    "CpuTensors", "CudaTensors", "DevicePlaces", "TensorPlace", "sddmm_at", "spmm_at", "spmm_transposed_at",
    "tensors_on",
]


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


@dataclass(frozen=True)
class DevicePlaces:
    """Products of which every element takes one nonzero of its row of A (rows, cols).

    Places are (rows, width) int32, -1 in rows without nonzeros; results have the type of the operands.

    Args:
        columns: of A's nonzeros, (nnz,) int64, on the device of all operands.
    """

    columns: torch.Tensor
    cols: int

    def spmm_at(self, places: torch.Tensor, values: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Gather: D (rows, width), 0 in rows without nonzeros, for X (cols, width)."""
        if not self.columns.numel():
            return right.new_zeros(places.shape)
        at, there = self._at(places)
        return torch.where(there, values[at] * right.gather(0, self.columns[at]), 0)

    def spmm_transposed_at(self, places: torch.Tensor, values: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """Scatter: D (cols, width), for Y (rows, width)."""
        result = left.new_zeros(self.cols, places.shape[1], dtype=torch.float32)
        if self.columns.numel():
            at, there = self._at(places)
            result.scatter_add_(0, self.columns[at], torch.where(there, values.float()[at] * left, 0))
        return result.to(left.dtype)

    def sddmm_at(self, places: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Add up what each nonzero is the place of: D (nnz,), for Y (rows, width), X (cols, width)."""
        result = left.new_zeros(self.columns.shape, dtype=torch.float32)
        if self.columns.numel():
            at, there = self._at(places)
            products = torch.where(there, left.float() * right.float().gather(0, self.columns[at]), 0)
            result.index_add_(0, at.flatten(), products.flatten())
        return result.to(left.dtype)

    @staticmethod
    def _at(places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Say which nonzero an element takes, any where there is none, and whether there is one."""
        return places.long().clamp(min=0), places >= 0


class TensorPlace(Protocol):
    """A device of torch.

    Args:
        device: of tensors and results.
    """

    device: torch.device

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Make a pattern ready there, with ones for values; nothing of the tensors it came from is kept."""

    def array(self, tensor: torch.Tensor) -> Any:
        """Give a tensor as prepared matrices take it, a copy only where its numbers are negated when they are read."""

    def run(self, product: Callable[[], Any]) -> torch.Tensor:
        """Compute after what torch computes there, and view the result as a tensor."""

    def run_both(self, product: Callable[[], tuple[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Do as `run` for two results."""

    def places(self, pattern: Pattern) -> DevicePlaces | None:
        """Take what computes with places of maxima; None where kernels of `sparloom.nn.tensor_backend` do."""


class CpuTensors:
    """The processor."""

    device = torch.device("cpu")

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Make a pattern ready."""
        ones = SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))
        return Prepared(ones, threads=threads, libraries=SPARSE_LIBRARIES)

    def array(self, tensor: torch.Tensor) -> np.ndarray:
        """View a tensor as an array."""
        return tensor.numpy(force=True)

    def run(self, product: Callable[[], np.ndarray]) -> torch.Tensor:
        """Compute."""
        return torch.from_numpy(product())

    def run_both(self, product: Callable[[], tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute."""
        first, second = product()
        return torch.from_numpy(first), torch.from_numpy(second)

    def places(self, pattern: Pattern) -> None:
        """There are kernels."""


class CudaTensors:
    """An NVIDIA GPU, the current device of CuPy.

    Args:
        where: the same as decisions know it, with bits of bfloat16.
        stream: gives the address of torch's current stream, on which kernels run, too.
    """

    def __init__(self, device: torch.device, where: CudaBackend, stream: Callable[[], int]) -> None:
        self.device, self._where, self._stream = device, where, stream

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Copy a pattern to the device; threads do not matter there."""
        return Prepared(self._where.ones(pattern), libraries=CUDA_SPARSE_LIBRARIES, where=self._where)

    def array(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take a tensor out of what autograd follows: it speaks DLPack."""
        return as_bits(tensor.detach().resolve_neg())

    def run(self, product: Callable[[], Any]) -> torch.Tensor:
        """Compute on torch's stream; the tensor keeps CuPy's array alive."""
        with self._where.gpu.following(self._stream()):
            return as_tensor(product())

    def run_both(self, product: Callable[[], tuple[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Do as `run`."""
        with self._where.gpu.following(self._stream()):
            first, second = product()
            return as_tensor(first), as_tensor(second)

    def places(self, pattern: Pattern) -> DevicePlaces:
        """Copy the columns to the device."""
        return DevicePlaces(torch.from_numpy(pattern.indices).to(self.device, torch.int64), pattern.cols)


def tensors_on(device: torch.device) -> TensorPlace:
    """Take a device.

    Raises:
        Unsupported: it is a GPU, and CuPy is missing; names the remedy.
    """
    if device.type == "cpu":
        return CpuTensors()
    return CudaTensors(device, CudaBackend.here(bits=True), lambda: torch.cuda.current_stream(device).cuda_stream)
