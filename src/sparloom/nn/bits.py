"""Tensors as libraries take them that do not know bfloat16: by the bits of its numbers, as uint16."""

from typing import Any

import torch

__all__ = ["as_bits", "as_tensor"]


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """View bfloat16 as uint16; other tensors as they are."""
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


def as_tensor(array: Any) -> torch.Tensor:
    """View an array that speaks DLPack as a tensor, uint16 as bfloat16."""
    tensor = torch.from_dlpack(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
