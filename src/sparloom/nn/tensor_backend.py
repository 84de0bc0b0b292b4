"""Backends for tensors: how tensors of a device reach the kernels there, and results come back.

The products at the argmax, from which gradients of the maximum of products are made, differ by backend. For A
(rows, cols) with values (nnz,), X (cols, width), Y (rows, width), and argmax (rows, width) int32, which holds for each
element the position p of a nonzero of A, in column j, or -1 in rows without nonzeros:

    spmm_at              D(i, f)  = values(p) X(j, f)
    spmm_transposed_at   D(j, f) += values(p) Y(i, f)
    sddmm_at             D(p)    += Y(i, f) X(j, f)

The second and the third are gradients of the maximum; the first is needed for their own gradients. Each costs
rows * width accesses to X or D, independent of the number of nonzeros.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparloom.jit import NativeCall, address, aligned, kernel_library
from sparloom.nn.baselines import CUDA_SPARSE_LIBRARIES, SPARSE_LIBRARIES
from sparloom.nn.content_hash import bfloat16_as_uint16, contiguous_array, tensor_from_dlpack
from sparloom.platforms.cpu_kernels import ELEMENTS
from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix
from sparloom.tuning.sparse import CudaBackend, Prepared


class CpuTensorBackend:
    """The CPU."""

    device = torch.device("cpu")

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Prepare a pattern with values of one; keeps no reference to the tensors that it was made from."""
        ones = SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))
        return Prepared(ones, threads=threads, libraries=SPARSE_LIBRARIES)

    def array(self, tensor: torch.Tensor) -> np.ndarray:
        """View a tensor as prepared matrices take it; copies only lazily negated tensors."""
        if tensor.dtype != torch.bfloat16:
            return tensor.numpy(force=True)
        return bfloat16_as_uint16(tensor.detach().resolve_neg()).numpy(force=True).view(BFLOAT16)

    def run(self, product: Callable[[], Any]) -> Any:
        """Compute one or several results, and view them as tensors."""
        return _tensors(_tensor_of, product())

    def argmax_products(self, pattern: Pattern, threads: int) -> CpuArgmaxProducts:
        """Return the products at argmax, by compiled kernels."""
        return CpuArgmaxProducts(pattern.indices, pattern.cols, threads)


class CudaTensorBackend:
    """An NVIDIA GPU, the current device of CuPy.

    Args:
        where: the backend of prepared matrices, with bfloat16 as uint16.
        stream: returns the address of torch's current stream, on which kernels run.
    """

    def __init__(self, device: torch.device, where: CudaBackend, stream: Callable[[], int]) -> None:
        self.device, self._where, self._stream = device, where, stream

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Copy a pattern to the device; `threads` is ignored."""
        return Prepared(self._where.ones(pattern), libraries=CUDA_SPARSE_LIBRARIES, where=self._where)

    def array(self, tensor: torch.Tensor) -> torch.Tensor:
        """Detach a tensor, which supports DLPack."""
        return bfloat16_as_uint16(tensor.detach().resolve_neg())

    def run(self, product: Callable[[], Any]) -> Any:
        """Compute on torch's stream; the tensors keep CuPy's arrays alive."""
        with self._where.gpu.following(self._stream()):
            return _tensors(tensor_from_dlpack, product())

    def argmax_products(self, pattern: Pattern, threads: int) -> DeviceArgmaxProducts:
        """Return the products at argmax, by torch operations; `threads` is ignored."""
        return DeviceArgmaxProducts(torch.from_numpy(pattern.indices).to(self.device, torch.int64), pattern.cols)


TensorBackend = CpuTensorBackend | CudaTensorBackend


def _tensors(view: Callable[[Any], torch.Tensor], results: Any) -> Any:
    return tuple(map(view, results)) if isinstance(results, tuple) else view(results)


def _tensor_of(array: np.ndarray) -> torch.Tensor:
    """View a result as a tensor."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensor_backend(device: torch.device) -> TensorBackend:
    """Return the backend of a device.

    Raises:
        Unsupported: it is a GPU, and CuPy is not installed; names the remedy.
    """
    if device.type == "cpu":
        return CpuTensorBackend()
    return CudaTensorBackend(
        device, CudaBackend.here(bits=True), lambda: torch.cuda.current_stream(device).cuda_stream)


@dataclass(frozen=True)
class CpuArgmaxProducts:
    """Kernels of kernels/cpu/argmax_products.cpp; sums of 16-bit numbers are float32, in an array of their own.

    Threads of the scatter own strips of columns, at least 16 wide; surplus threads split the rows of the result. Sums
    do not depend on the number of threads.

    Args:
        indices: columns of A's nonzeros, (nnz,) int32.
    """

    indices: np.ndarray
    cols: int
    threads: int

    def spmm_at(self, argmax: torch.Tensor, values: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Gather: D (rows, width), 0 in rows without nonzeros."""
        result = aligned(tuple(argmax.shape), _array_type(right.dtype))
        return self._run("spmm_at", argmax, result, values=values, right=right)

    def spmm_transposed_at(self, argmax: torch.Tensor, values: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """Scatter: D (cols, width)."""
        result = aligned((self.cols, argmax.shape[1]), _sum_type(left.dtype), zero=True)
        return self._run("spmm_transposed_at", argmax, result, values=values, left=left)

    def sddmm_at(self, argmax: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Sum over the elements that use each nonzero: D (nnz,)."""
        result = aligned(self.indices.shape, _sum_type(left.dtype), zero=True)
        return self._run("sddmm_at", argmax, result, left=left, right=right)

    def _run(self, name: str, argmax: torch.Tensor, result: np.ndarray, **operands: torch.Tensor) -> torch.Tensor:
        rows, width = argmax.shape
        dtypes = {tensor.dtype for tensor in operands.values()}
        assert len(dtypes) == 1, "operators promote their operands"
        dtype, = dtypes
        if width:
            own = _array_type(dtype)
            positions = contiguous_array(argmax)
            arrays = {operand: contiguous_array(tensor).view(own) for operand, tensor in operands.items()}
            arguments = _Arguments(
                argmax=address(positions, np.int32), indices=address(self.indices, np.int32),
                result=address(result, result.dtype, written=True), rows=rows, cols=self.cols, width=width,
                threads=self.threads, **{operand: address(array, own) for operand, array in arrays.items()})
            run = getattr(kernel_library("argmax_products", ELEMENTS[own]), f"sparloom_{name}")
            NativeCall(run, arguments, kept=(positions, arrays))()
        return _tensor_of(result).to(dtype)


@dataclass(frozen=True)
class DeviceArgmaxProducts:
    """torch operations, on any device; a few arrays of (rows, width) in between.

    Sums are in any order, those of 16-bit numbers in float32.

    Args:
        columns: of A's nonzeros, (nnz,) int64, on the device of all operands.
    """

    columns: torch.Tensor
    cols: int

    def spmm_at(self, argmax: torch.Tensor, values: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Gather, in the type of the operands."""
        if not self.columns.numel():
            return right.new_zeros(argmax.shape)
        position, exists = self._positions(argmax)
        return torch.where(exists, values[position] * right.gather(0, self.columns[position]), 0)

    def spmm_transposed_at(self, argmax: torch.Tensor, values: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """Scatter, to the type of the operands."""
        result = left.new_zeros(self.cols, argmax.shape[1], dtype=torch.float32)
        if self.columns.numel():
            position, exists = self._positions(argmax)
            result.scatter_add_(
                0, self.columns[position], torch.where(exists, values.float()[position] * left, 0))
        return result.to(left.dtype)

    def sddmm_at(self, argmax: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Sum over the elements that use each nonzero, in the type of the operands."""
        result = left.new_zeros(self.columns.shape, dtype=torch.float32)
        if self.columns.numel():
            position, exists = self._positions(argmax)
            products = torch.where(exists, left.float() * right.float().gather(0, self.columns[position]), 0)
            result.index_add_(0, position.flatten(), products.flatten())
        return result.to(left.dtype)

    @staticmethod
    def _positions(argmax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a valid position for every element, and whether its row has nonzeros."""
        return argmax.long().clamp(min=0), argmax >= 0


ArgmaxProducts = CpuArgmaxProducts | DeviceArgmaxProducts


class _Arguments(ctypes.Structure):
    """The struct ArgmaxProducts of kernels/cpu/argmax_products.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("argmax", "indices", "values", "left", "right", "result")),
        *((name, ctypes.c_int64) for name in ("rows", "cols", "width")),
        ("threads", ctypes.c_int32),
    )


def _array_type(dtype: torch.dtype) -> np.dtype:
    """Return the NumPy type of numbers of a torch dtype."""
    return BFLOAT16 if dtype == torch.bfloat16 else torch.empty(0, dtype=dtype).numpy().dtype


def _sum_type(dtype: torch.dtype) -> type[np.generic]:
    """Return the NumPy type in which they are added up."""
    return np.float64 if dtype == torch.float64 else np.float32
