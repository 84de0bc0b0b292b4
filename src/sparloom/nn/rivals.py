"""What the guardrail compares with where torch is there: its own sparse products, bound to arrays.

They run on as many threads as torch has; what is prepared by this package's operators has the same number.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch

from sparloom.dispatch import csr
from sparloom.nn.torch_matrix import torch_csr
from sparloom.ops import Operands
from sparloom.platforms import Rival

__all__ = ["LIBRARIES"]

Call = Callable[[], None]


def torch_mm(operands: Operands, result: np.ndarray) -> Call:
    """Multiply by torch.mm with a CSR tensor."""
    with torch.inference_mode(False):
        matrix, dense, out = torch_csr(operands.matrix), *_tensors(operands.dense["B"], result)
    return lambda: torch.mm(matrix, dense, out=out)


def torch_sparse_mm(operands: Operands, result: np.ndarray) -> Call:
    """Multiply by torch.sparse.mm with a reduction, into a new tensor; the copy is in the time."""
    with torch.inference_mode(False):
        matrix, dense, out = torch_csr(operands.matrix), *_tensors(operands.dense["B"], result)
    return lambda: out.copy_(torch.sparse.mm(matrix, dense, "sum"))


def torch_sampled_addmm(operands: Operands, result: np.ndarray) -> Call:
    """Multiply by torch.sparse.sampled_addmm, which takes the pattern of A, and by the values of A."""
    with torch.inference_mode(False):
        matrix, left, right, out = torch_csr(operands.matrix), *_tensors(
            operands.dense["B"], operands.dense["C"], result)
    values, turned = matrix.values(), right.T
    return lambda: torch.mul(torch.sparse.sampled_addmm(matrix, left, turned, beta=0.0).values(), values, out=out)


def torch_gather(operands: Operands, result: np.ndarray) -> Call:
    """Gather a row of each dense operand for every nonzero, multiply and add up: gather-dot.

    Source: AutoSAGE's baseline for SDDMM.
    """
    pattern = operands.matrix.pattern
    with torch.inference_mode(False):
        left, right, values, rows, cols, out = _tensors(
            operands.dense["B"], operands.dense["C"], operands.matrix.values, pattern.row_ids(), pattern.indices,
            result)
    return lambda: torch.mul((left[rows] * right[cols]).sum(1), values, out=out)


LIBRARIES: Mapping[str, Mapping[str, Rival]] = MappingProxyType({
    **csr.LIBRARIES,
    "spmm": MappingProxyType({**csr.LIBRARIES.get("spmm", {}), "torch_mm": torch_mm,
                              "torch_sparse_mm": torch_sparse_mm}),
    "sddmm": MappingProxyType({**csr.LIBRARIES.get("sddmm", {}), "torch_sampled_addmm": torch_sampled_addmm,
                               "torch_gather": torch_gather}),
})
"""Operation -> library -> rival."""


def _tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays))
