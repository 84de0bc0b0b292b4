"""What the guardrail compares with on a GPU where torch is there: cuSPARSE by torch and by CuPy; gather-dot."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from sparloom.dispatch.csr import CUDA_LIBRARIES, Library, Product
from sparloom.nn.bits import as_bits, as_tensor
from sparloom.nn.torch_matrix import csr_tensor
from sparloom.platforms import DeviceMatrix

__all__ = ["CUDA_SPARSE_LIBRARIES"]


def torch_mm(matrix: DeviceMatrix, threads: int) -> Product:
    """Multiply by torch.mm with a CSR tensor, which calls cuSPARSE."""
    indptr, indices, values = map(as_tensor, (matrix.placed.indptr, matrix.placed.indices, matrix.values))
    narrow = torch.int32 if matrix.pattern.nnz < 2**31 else torch.int64
    with torch.inference_mode(False):
        left = csr_tensor(indptr.to(narrow), indices.to(narrow), values, matrix.pattern.shape)

    def product(dense: Mapping[str, Any]) -> Any:
        return matrix.gpu.adopt(as_bits(torch.mm(left, as_tensor(dense["B"]))), "the result")

    return product


def torch_gather(matrix: DeviceMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and add up, in float32.

    Source: AutoSAGE's baseline for SDDMM.
    """
    rows = as_tensor(matrix.gpu.upload(matrix.pattern.row_ids()))
    cols, values = map(as_tensor, (matrix.placed.indices, matrix.values))

    def product(dense: Mapping[str, Any]) -> Any:
        left, right = (as_tensor(dense[name]).float() for name in ("B", "C"))
        result = (left[rows] * right[cols]).sum(1).mul_(values).to(values.dtype)
        return matrix.gpu.adopt(as_bits(result), "the result")

    return product


CUDA_SPARSE_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    "spmm": MappingProxyType({**CUDA_LIBRARIES["spmm"], "torch_mm": torch_mm}),
    "sddmm": MappingProxyType({"torch_gather": torch_gather})})
"""Operation -> name -> library."""
