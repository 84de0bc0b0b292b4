"""Sparse matrices as torch takes them."""

import warnings

import numpy as np
import torch

from sparloom.sparse import SparseMatrix

__all__ = ["csr_tensor", "torch_csr"]


def torch_csr(matrix: SparseMatrix) -> torch.Tensor:
    """View a matrix as a CSR tensor with indices of 32 bits, torch's faster form; the values are shared."""
    pattern = matrix.pattern
    parts = (pattern.indptr.astype(np.int32), pattern.indices, matrix.values)
    return csr_tensor(*map(torch.from_numpy, parts), pattern.shape)


def csr_tensor(crow: torch.Tensor, col: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Put tensors together to a CSR tensor, which shares them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR format a beta
        return torch.sparse_csr_tensor(crow, col, values, size=shape)
