"""What the guardrail compares with on a GPU where torch is there: cuSPARSE by torch and by CuPy; gather-dot."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from sparloom.nn.bits import as_bits, as_tensor
from sparloom.nn.rivals import gather_dot
from sparloom.nn.torch_matrix import device_csr, with_values
from sparloom.ops import Operands
from sparloom.platforms import DeviceMatrix
from sparloom.tuning.sparse import CUDA_LIBRARIES, Library, Product

__all__ = ["CUDA_SPARSE_LIBRARIES"]


def torch_mm(matrix: DeviceMatrix, threads: int) -> Product:
    """Multiply by torch.mm with a CSR tensor, which calls cuSPARSE."""
    left = device_csr(matrix)

    def product(operands: Operands) -> Any:
        valued = with_values(left, as_tensor(operands.matrix.values))
        return matrix.gpu.adopt(as_bits(torch.mm(valued, as_tensor(operands.dense["B"]))), "the result")

    return product


def torch_gather(matrix: DeviceMatrix, threads: int) -> Product:
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
    "spmm": MappingProxyType({**CUDA_LIBRARIES["spmm"], "torch_mm": torch_mm}),
    "sddmm": MappingProxyType({"torch_gather": torch_gather})})
"""Operation -> name -> library."""
