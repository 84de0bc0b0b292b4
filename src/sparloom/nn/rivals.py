"""What the guardrail compares with where torch is there: its own sparse products, ready for one matrix.

They run on as many threads as torch has; what is prepared by this package's operators has the same number.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from sparloom.dispatch import csr
from sparloom.dispatch.csr import Library, Product
from sparloom.nn.torch_matrix import torch_csr
from sparloom.sparse import SparseMatrix

__all__ = ["SPARSE_LIBRARIES"]


def torch_mm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by torch.mm with a CSR tensor."""
    left = _csr(matrix)
    return lambda dense: torch.mm(left, torch.from_numpy(dense["B"])).numpy()


def torch_sparse_mm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by torch.sparse.mm with a reduction."""
    left = _csr(matrix)
    return lambda dense: torch.sparse.mm(left, torch.from_numpy(dense["B"]), "sum").numpy()


def torch_sampled_addmm(matrix: SparseMatrix, threads: int) -> Product:
    """Multiply by torch.sparse.sampled_addmm, which takes the pattern of A, and by the values of A."""
    sparse = _csr(matrix)
    values = sparse.values()

    def product(dense: Mapping[str, np.ndarray]) -> np.ndarray:
        left, right = (torch.from_numpy(dense[name]) for name in ("B", "C"))
        return torch.sparse.sampled_addmm(sparse, left, right.T, beta=0.0).values().mul_(values).numpy()

    return product


def torch_gather(matrix: SparseMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and add up: gather-dot.

    Source: AutoSAGE's baseline for SDDMM.
    """
    values, rows, cols = map(torch.from_numpy, (matrix.values, matrix.pattern.row_ids(), matrix.pattern.indices))

    def product(dense: Mapping[str, np.ndarray]) -> np.ndarray:
        left, right = (torch.from_numpy(dense[name]) for name in ("B", "C"))
        return (left[rows] * right[cols]).sum(1).mul_(values).numpy()

    return product


SPARSE_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    **csr.LIBRARIES,
    "spmm": MappingProxyType({**csr.LIBRARIES["spmm"], "torch_mm": torch_mm, "torch_sparse_mm": torch_sparse_mm}),
    "sddmm": MappingProxyType({"torch_sampled_addmm": torch_sampled_addmm, "torch_gather": torch_gather}),
})
"""Operation -> name -> library."""


def _csr(matrix: SparseMatrix) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch_csr(matrix)
