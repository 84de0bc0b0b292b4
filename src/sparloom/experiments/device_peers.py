"""SpMM, SDDMM and attention on a sparse pattern as users of a GPU have them without us, bound to operands there.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from sparloom.experiments.composed_attention import gathered_attention, sampled_attention
from sparloom.nn import CUDA_SPARSE_LIBRARIES, device_csr
from sparloom.ops import Operands
from sparloom.tuning.sparse import Library

__all__ = ["GATHERING_THERE", "SPARSE_DEVICE_PEERS"]

Bind = Callable[[Operands], Callable[[], Any]]


def _library(operands: Operands, *, library: Library) -> Callable[[], Any]:
    """Take what decisions compare with."""
    product = library(operands.matrix, 0)
    return lambda: product(operands)


def _sampled_addmm(operands: Operands) -> Callable[[], torch.Tensor]:
    """torch.sparse.sampled_addmm, which calls cuSPARSE, times A's values."""
    matrix, (left, right) = device_csr(operands.matrix), _tensors(operands).values()
    values = matrix.values()
    return lambda: torch.sparse.sampled_addmm(matrix, left, right.T, beta=0.0).values().mul_(values)


def _composed_sampled(operands: Operands) -> Callable[[], torch.Tensor]:
    """Attention head after head."""
    return sampled_attention(device_csr(operands.matrix), _rows(operands), _tensors(operands))


def _composed_gathered(operands: Operands) -> Callable[[], torch.Tensor]:
    """Attention of all heads at once."""
    columns = torch.from_dlpack(operands.matrix.placed.indices).long()
    return gathered_attention(_rows(operands), columns, _tensors(operands))


def _rows(operands: Operands) -> torch.Tensor:
    matrix = operands.matrix
    return torch.from_dlpack(matrix.gpu.upload(matrix.pattern.row_ids())).long()


def _tensors(operands: Operands) -> dict[str, torch.Tensor]:
    return {name: torch.from_dlpack(array) for name, array in operands.dense.items()}


SPARSE_DEVICE_PEERS: Mapping[str, Mapping[str, Bind]] = MappingProxyType({
    "spmm": {name: partial(_library, library=library) for name, library in CUDA_SPARSE_LIBRARIES["spmm"].items()},
    "sddmm": {"torch_sampled_addmm": _sampled_addmm, **{
        name: partial(_library, library=library) for name, library in CUDA_SPARSE_LIBRARIES["sddmm"].items()}},
    "attention": {"composed": _composed_sampled, "gathered": _composed_gathered},
})
"""Operation -> name -> how it is bound to operands on a device."""

GATHERING_THERE = ("torch_gather", "gathered")
"""Peers that make two arrays (nnz, width)."""
