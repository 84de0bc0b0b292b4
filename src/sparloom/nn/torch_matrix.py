"""Sparse matrices as torch takes them."""

import warnings

import torch

from sparloom.nn.bits import as_tensor
from sparloom.nn.transforms import unscriptable
from sparloom.platforms import DeviceMatrix
from sparloom.sparse import SparseMatrix

__all__ = ["csr_tensor", "device_csr", "torch_csr", "with_values"]

MOST = 2**31 - 1  # nonzeros that indices of 32 bits count


@unscriptable
def torch_csr(matrix: SparseMatrix) -> torch.Tensor:
    """View a matrix as a CSR tensor; the values are shared."""
    pattern = matrix.pattern
    return csr_tensor(*map(torch.from_numpy, (pattern.indptr, pattern.indices, matrix.values)), pattern.shape)


@unscriptable
def device_csr(matrix: DeviceMatrix) -> torch.Tensor:
    """View a matrix on a GPU as a CSR tensor there, likewise."""
    parts = map(as_tensor, (matrix.placed.indptr, matrix.placed.indices, matrix.values))
    with torch.inference_mode(False):
        return csr_tensor(*parts, matrix.pattern.shape)


def csr_tensor(crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Put tensors together to a CSR tensor, which shares the values.

    Its indices have 32 bits where these count the nonzeros: torch's faster form.
    """
    integer = torch.int32 if values.numel() <= MOST else torch.int64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR format a beta
        return torch.sparse_csr_tensor(crow.to(integer), col.to(integer), values, size=shape)


def with_values(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Put other values at the nonzeros of a CSR tensor; all is shared."""
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, size=matrix.shape)
