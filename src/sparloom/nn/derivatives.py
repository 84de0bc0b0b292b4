"""Which derivatives may be asked for of operations on these tensors, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["asks_for_derivatives", "check_batched", "in_transform", "is_followed", "looped", "outside_transforms",
           "tangent_of"]


def in_transform() -> bool:
    """Whether a transform of torch.func is at work: its tensors hold no numbers that could be read."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def outside_transforms() -> AbstractContextManager[None]:
    """Let operations on tensors that no transform follows be as if there were none; else results would be followed."""
    return torch._C._DisableFuncTorch() if in_transform() else nullcontext()


def check_batched(tensor: torch.Tensor, name: str) -> None:
    """Refuse tensors of the older vmap, which torch.autograd uses by itself, and which functions cannot tell apart.

    Raises:
        RuntimeError: it is one; names the remedy.
    """
    if not torch.compiler.is_compiling() and torch._C._functorch.is_legacy_batchedtensor(tensor):
        raise RuntimeError(f"{name} has no derivatives that are batched by is_grads_batched or vectorize=True, be they "
                           "first or second ones: use torch.func.jacrev and the like, or neither of these options")


def asks_for_derivatives(tensors: Iterable[Any]) -> bool:
    """Whether a gradient may be asked for later, or one in forward mode is computed now."""
    given = [each for each in tensors if isinstance(each, torch.Tensor)]
    return ((torch.is_grad_enabled() and any(each.requires_grad for each in given))
            or (forward_ad._current_level >= 0 and any(tangent_of(each) is not None for each in given)))


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether derivatives by this tensor may be asked for, or are computed."""
    return (tensor.requires_grad or tangent_of(tensor) is not None
            or (in_transform() and torch._C._functorch.is_functorch_wrapped_tensor(tensor)))


def tangent_of(tensor: Any) -> torch.Tensor | None:
    """Give the derivative of a tensor in forward mode, if there is one."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0 or not isinstance(tensor, torch.Tensor):
        return None
    check_batched(tensor, "this operation")
    return forward_ad.unpack_dual(tensor).tangent


def looped(function: type[torch.autograd.Function], info: Any, in_dims: tuple[Any, ...], given: tuple[Any, ...]
           ) -> tuple[Any, Any]:
    """Compute for one element of a batch after the other: a rule of torch.func.vmap.

    Args:
        function: returns a tensor, or a tuple of them.
        info, in_dims, given: as `torch.autograd.Function.vmap` gets them.
    """
    def element(number: int) -> tuple[Any, ...]:
        return tuple(each if not isinstance(dim, int) else each.select(dim, number) if info.batch_size
                     else each.sum(dim) for each, dim in zip(given, in_dims, strict=True))

    results = [function.apply(*element(number)) for number in range(max(1, info.batch_size))]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results)[:info.batch_size], 0  # of an empty batch the shape is kept
    return tuple(torch.stack(parts)[:info.batch_size] for parts in zip(*results, strict=True)), (0,) * len(results[0])
