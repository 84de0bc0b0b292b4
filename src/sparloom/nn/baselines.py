"""torch's own sparse products: baselines that a kernel must beat, and CSR tensors of matrices.

Products run on torch's number of threads, which the operators of this package use as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from sparloom import baselines
from sparloom.baselines import csr_tensor
from sparloom.nn.content_hash import bfloat16_as_uint16, tensor_from_dlpack
from sparloom.nn.torch_integration import unscriptable
from sparloom.ops import Operands
from sparloom.platforms import DeviceMatrix
from sparloom.sparse import SparseMatrix
from sparloom.tuning.sparse import CUDA_LIBRARIES, LIBRARIES, Library, Product, gathered_pieces

torch_csr = unscriptable(baselines.torch_csr)
"""Make torch's sparse CSR tensor of a pattern and its values, without copies."""


@unscriptable
def device_csr(matrix: DeviceMatrix) -> torch.Tensor:
    """View a matrix on a GPU as a CSR tensor there, which shares the values."""
    parts = map(tensor_from_dlpack, (matrix.placed.indptr, matrix.placed.indices, matrix.values))
    with torch.inference_mode(False):
        return csr_tensor(*parts, matrix.pattern.shape)


def with_values(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Replace the values of a CSR tensor; nothing is copied."""
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, size=matrix.shape)


def _torch_product(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Library:
    """Return a baseline that multiplies a CSR tensor by a dense one."""
    def baseline(matrix: SparseMatrix, threads: int) -> Product:
        left = _csr_tensor(matrix)
        return lambda operands: multiply(_operand_values(left, operands), torch.from_numpy(operands.dense["B"])).numpy()

    return baseline


torch_mm = _torch_product(torch.mm)
torch_sparse_mm = _torch_product(lambda matrix, dense: torch.sparse.mm(matrix, dense, "sum"))


def torch_sampled_addmm(matrix: SparseMatrix, threads: int) -> Product:
    """Compute torch.sparse.sampled_addmm, which reads the pattern of A only, and multiply by the values of A."""
    sparse = _csr_tensor(matrix)

    def product(operands: Operands) -> np.ndarray:
        left, right, values = _tensors(operands)
        return torch.sparse.sampled_addmm(sparse, left, right.T, beta=0.0).values().mul_(values).numpy()

    return product


SPARSE_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    **LIBRARIES,
    "spmm": MappingProxyType({**LIBRARIES["spmm"], "torch_mm": torch_mm, "torch_sparse_mm": torch_sparse_mm}),
    "sddmm": MappingProxyType({"torch_sampled_addmm": torch_sampled_addmm}),
})
"""Operation -> name -> baseline on the CPU. Gathering rows for SDDMM takes 50 times as long as our kernels and more."""


def gather_dot(left: torch.Tensor, right: torch.Tensor, rows: torch.Tensor, cols: torch.Tensor) -> torch.Tensor:
    """Compute dot products of pairs of rows, (nnz,), in pieces, which bounds the memory of gathered rows.

    Those of 16-bit numbers are computed, and returned, in float32.
    """
    dtype = torch.promote_types(left.dtype, torch.float32)
    result = left.new_empty(rows.shape, dtype=dtype)
    for piece in gathered_pieces(rows.numel(), left.shape[1]):
        result[piece] = (left[rows[piece]].to(dtype) * right[cols[piece]].to(dtype)).sum(1)
    return result


def _tensors(operands: Operands) -> list[torch.Tensor]:
    """Return both dense operands of SDDMM and the values of A."""
    return [*map(torch.from_numpy, (operands.dense["B"], operands.dense["C"], operands.matrix.values))]


def _operand_values(matrix: torch.Tensor, operands: Operands) -> torch.Tensor:
    """Return the matrix with the values of the operands."""
    return with_values(matrix, torch.from_numpy(operands.matrix.values))


def _csr_tensor(matrix: SparseMatrix) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch_csr(matrix)


def device_mm(matrix: DeviceMatrix, threads: int) -> Product:
    """Compute torch.mm of a CSR tensor, which calls cuSPARSE."""
    left = device_csr(matrix)

    def product(operands: Operands) -> Any:
        valued = with_values(left, tensor_from_dlpack(operands.matrix.values))
        result = torch.mm(valued, tensor_from_dlpack(operands.dense["B"]))
        return matrix.gpu.adopt(bfloat16_as_uint16(result), "the result")

    return product


def device_gather(matrix: DeviceMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and sum, in float32.

    Source: AutoSAGE's baseline for SDDMM.
    """
    rows, cols = map(tensor_from_dlpack, (matrix.gpu.upload(matrix.pattern.row_ids()), matrix.placed.indices))

    def product(operands: Operands) -> Any:
        arrays = operands.dense["B"], operands.dense["C"], operands.matrix.values
        left, right, values = map(tensor_from_dlpack, arrays)
        result = gather_dot(left, right, rows, cols).mul_(values).to(values.dtype)
        return matrix.gpu.adopt(bfloat16_as_uint16(result), "the result")

    return product


def device_sampled_addmm(matrix: DeviceMatrix, threads: int) -> Product:
    """Compute torch.sparse.sampled_addmm, which calls cuSPARSE, in float32, and multiply by the values of A."""
    pattern = device_csr(matrix).float()

    def product(operands: Operands) -> Any:
        arrays = operands.dense["B"], operands.dense["C"], operands.matrix.values
        left, right, values = map(tensor_from_dlpack, arrays)
        sampled = torch.sparse.sampled_addmm(pattern, left.float(), right.float().T, beta=0.0).values()
        return matrix.gpu.adopt(bfloat16_as_uint16(sampled.mul_(values).to(values.dtype)), "the result")

    return product


CUDA_SPARSE_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    "spmm": MappingProxyType({**CUDA_LIBRARIES["spmm"], "torch_mm": device_mm}),
    "sddmm": MappingProxyType({"torch_sampled_addmm": device_sampled_addmm, "torch_gather": device_gather})})
"""Operation -> name -> baseline on a GPU: cuSPARSE by torch and by CuPy, and gather-and-multiply."""
