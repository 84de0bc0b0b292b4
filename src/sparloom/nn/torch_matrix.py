"""Sparse matrices as torch takes them."""

import warnings

import numpy as np
import torch

from sparloom.platforms import DeviceMatrix
from sparloom.sparse import SparseMatrix

__all__ = ["csr_tensor", "device_csr", "torch_csr"]


def torch_csr(matrix: SparseMatrix) -> torch.Tensor:
    """View a matrix as a CSR tensor with indices of 32 bits, torch's faster form; the values are shared."""
    pattern = matrix.pattern
    parts = (pattern.indptr.astype(np.int32), pattern.indices, matrix.values)
    return csr_tensor(*map(torch.from_numpy, parts), pattern.shape)


def device_csr(matrix: DeviceMatrix) -> torch.Tensor:
    """View a matrix on a GPU as a CSR tensor there, likewise; indices of 64 bits where nonzeros need them."""
    indptr, indices, values = map(torch.from_dlpack, (matrix.placed.indptr, matrix.placed.indices, matrix.values))
    narrow = torch.int32 if matrix.pattern.nnz < 2**31 else torch.int64
    with torch.inference_mode(False):
        return csr_tensor(indptr.to(narrow), indices.to(narrow), values, matrix.pattern.shape)


def csr_tensor(crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Put tensors together to a CSR tensor, which shares them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR format a beta
        return torch.sparse_csr_tensor(crow, col, values, size=shape)
