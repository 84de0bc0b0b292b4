"""Which derivatives may be asked for of operations on these tensors, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["asks_for_derivatives", "in_transform", "is_followed", "looped", "tangent_of"]


def in_transform() -> bool:
    """Whether a transform of torch.func is at work: its tensors hold no numbers that could be read."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def asks_for_derivatives(tensors: Iterable[Any]) -> bool:
    """Whether a gradient may be asked for later, or one in forward mode is computed now."""
    given = [each for each in tensors if isinstance(each, torch.Tensor)]
    return ((torch.is_grad_enabled() and any(each.requires_grad for each in given))
            or (forward_ad._current_level >= 0 and any(tangent_of(each) is not None for each in given)))


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether derivatives by this tensor may be asked for, or are computed."""
    return (tensor.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            or tangent_of(tensor) is not None)


def tangent_of(tensor: Any) -> torch.Tensor | None:
    """Give the derivative of a tensor in forward mode, if there is one."""
    if not isinstance(tensor, torch.Tensor) or forward_ad._current_level < 0:
        return None
    return forward_ad.unpack_dual(tensor).tangent


def looped(function: type[torch.autograd.Function], info: Any, in_dims: tuple[Any, ...], given: tuple[Any, ...]
           ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Compute for one element of a batch after the other: a rule of torch.func.vmap.

    Args:
        function: returns a tuple of tensors.
        info, in_dims, given: as `torch.autograd.Function.vmap` gets them.
    """
    def element(number: int) -> tuple[Any, ...]:
        return tuple(each if dim is None else each.select(dim, number)
                     for each, dim in zip(given, in_dims, strict=True))

    results = [function.apply(*element(number)) for number in range(info.batch_size)]
    return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])
