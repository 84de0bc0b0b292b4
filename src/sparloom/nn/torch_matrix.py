"""Sparse matrices as torch takes them."""

import torch

from sparloom.baselines import csr_tensor, torch_csr
from sparloom.nn.bits import as_tensor
from sparloom.nn.transforms import unscriptable
from sparloom.platforms import DeviceMatrix

__all__ = ["csr_tensor", "device_csr", "torch_csr", "with_values"]


@unscriptable
def device_csr(matrix: DeviceMatrix) -> torch.Tensor:
    """View a matrix on a GPU as a CSR tensor there, likewise."""
    parts = map(as_tensor, (matrix.placed.indptr, matrix.placed.indices, matrix.values))
    with torch.inference_mode(False):
        return csr_tensor(*parts, matrix.pattern.shape)


def with_values(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Put other values at the nonzeros of a CSR tensor; all is shared."""
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, size=matrix.shape)
