"""Sparse matrices as torch takes them.

What the guardrail compares with where torch is there: its own sparse products, ready for one pattern.

They run on as many threads as torch has; what is prepared by this package's operators has the same number.

What the guardrail compares with on a GPU where torch is there: cuSPARSE by torch and by CuPy; gather-dot.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from sparloom import baselines
from sparloom.baselines import csr_tensor
from sparloom.nn.torch_integration import unscriptable
from sparloom.nn.version_guard import as_bits, as_tensor
from sparloom.ops import Operands
from sparloom.platforms import DeviceMatrix
from sparloom.sparse import SparseMatrix
from sparloom.tuning import sparse as csr
from sparloom.tuning.sparse import CUDA_LIBRARIES, Library, Product, gathered_pieces

__all__ = ["CUDA_SPARSE_LIBRARIES", "SPARSE_LIBRARIES", "csr_tensor", "device_csr", "torch_csr", "with_values"]


torch_csr = unscriptable(baselines.torch_csr)


@unscriptable
def device_csr(matrix: DeviceMatrix) -> torch.Tensor:
    """View a matrix on a GPU as a CSR tensor there, likewise."""
    parts = map(as_tensor, (matrix.placed.indptr, matrix.placed.indices, matrix.values))
    with torch.inference_mode(False):
        return csr_tensor(*parts, matrix.pattern.shape)


def with_values(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Put other values at the nonzeros of a CSR tensor; all is shared."""
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, size=matrix.shape)


def torch_mm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by torch.mm with a CSR tensor."""
    left = _csr(matrix)
    return lambda operands: torch.mm(_valued(left, operands), torch.from_numpy(operands.dense["B"])).numpy()


def torch_sparse_mm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by torch.sparse.mm with a reduction."""
    left = _csr(matrix)

    def product(operands: Operands) -> np.ndarray:
        return torch.sparse.mm(_valued(left, operands), torch.from_numpy(operands.dense["B"]), "sum").numpy()

    return product


def torch_sampled_addmm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by torch.sparse.sampled_addmm, which takes the pattern of A, and by the values of A."""
    sparse = _csr(matrix)

    def product(operands: Operands) -> np.ndarray:
        left, right, values = _tensors(operands)
        return torch.sparse.sampled_addmm(sparse, left, right.T, beta=0.0).values().mul_(values).numpy()

    return product


def torch_gather(matrix: SparseMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and add up: gather-dot.

    Source: AutoSAGE's baseline for SDDMM.
    """
    rows, cols = map(torch.from_numpy, (matrix.pattern.row_ids(), matrix.pattern.indices))

    def product(operands: Operands) -> np.ndarray:
        left, right, values = _tensors(operands)
        return gather_dot(left, right, rows, cols).mul_(values).numpy()

    return product


SPARSE_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    **csr.LIBRARIES,
    "spmm": MappingProxyType({**csr.LIBRARIES["spmm"], "torch_mm": torch_mm, "torch_sparse_mm": torch_sparse_mm}),
    "sddmm": MappingProxyType({"torch_sampled_addmm": torch_sampled_addmm, "torch_gather": torch_gather}),
})
"""Operation -> name -> library."""


def gather_dot(left: torch.Tensor, right: torch.Tensor, rows: torch.Tensor, cols: torch.Tensor) -> torch.Tensor:
    """Multiply rows of two matrices (.., width) by each other and add up, (nnz,) float32, some nonzeros at a time."""
    result = left.new_empty(rows.shape, dtype=torch.float32)
    for piece in gathered_pieces(rows.numel(), left.shape[1]):
        result[piece] = (left[rows[piece]].float() * right[cols[piece]].float()).sum(1)
    return result


def _tensors(operands: Operands) -> list[torch.Tensor]:
    """Both dense operands of SDDMM, and the values of A."""
    return [*map(torch.from_numpy, (operands.dense["B"], operands.dense["C"], operands.matrix.values))]


def _valued(matrix: torch.Tensor, operands: Operands) -> torch.Tensor:
    return with_values(matrix, torch.from_numpy(operands.matrix.values))


def _csr(matrix: SparseMatrix) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch_csr(matrix)


def device_mm(matrix: DeviceMatrix, threads: int) -> Product:
    """Multiply by torch.mm with a CSR tensor, which calls cuSPARSE."""
    left = device_csr(matrix)

    def product(operands: Operands) -> Any:
        valued = with_values(left, as_tensor(operands.matrix.values))
        return matrix.gpu.adopt(as_bits(torch.mm(valued, as_tensor(operands.dense["B"]))), "the result")

    return product


def device_gather(matrix: DeviceMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and add up, in float32.

    Source: AutoSAGE's baseline for SDDMM.
    """
    rows, cols = map(as_tensor, (matrix.gpu.upload(matrix.pattern.row_ids()), matrix.placed.indices))

    def product(operands: Operands) -> Any:
        left, right, values = map(as_tensor, (operands.dense["B"], operands.dense["C"], operands.matrix.values))
        result = gather_dot(left, right, rows, cols).mul_(values).to(values.dtype)
        return matrix.gpu.adopt(as_bits(result), "the result")

    return product


CUDA_SPARSE_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    "spmm": MappingProxyType({**CUDA_LIBRARIES["spmm"], "torch_mm": device_mm}),
    "sddmm": MappingProxyType({"torch_gather": device_gather})})
"""Operation -> name -> library."""
