"""Which derivatives may be asked for of operations on these tensors, and by whom.

How operators of torch.ops.sparloom are registered.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad

from sparloom.nn.torch_integration import DEVICES, frames_are_compiled

__all__ = [
    "Gradients", "asks_for_derivatives", "check_batched", "define", "in_transform", "is_followed", "looped",
    "outside_transforms", "tangent_of",
]


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


Gradients = tuple[torch.Tensor | None, ...]
PLAIN = (torch.Tensor, torch.nn.Parameter)
TENSOR = object()  # stands for a tensor that is saved apart


def define(name: str, schema: str, *, run: Any, fake: Any, keep: Any, backward: Any, tangent: Any = None) -> Any:
    """Register an operator for the CPU and GPUs; not by torch.library.custom_op, whose first call imports the compiler.

    The way through torch's dispatcher and back is in Python and longer than many kernels. Where nobody is there to see
    the operator, calls take a shorter one, with the same gradients. Transforms of torch.func, and forward mode, which
    operators of torch.library have none of, take the shorter one, too.

    Args:
        run: computes, on tensors that hold numbers.
        fake: makes an empty result, for tracing.
        keep: stores what `backward` needs.
        tangent: gives the derivative in forward mode, of the arguments and their derivatives, None where there is none;
            unless given the operator is linear in each of its tensors.

    Returns:
        A function of the operator's arguments.
    """
    full = f"sparloom::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, DEVICES)(run)
    torch.library.register_fake(full)(fake)
    torch.library.register_autograd(full, backward, setup_context=keep)
    seen = getattr(torch.ops.sparloom, name).default

    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        saved = iter(ctx.saved_tensors)
        given = tuple(next(saved) if each is TENSOR else each for each in ctx.given)
        return _sum_of_slopes(call, given, tangents) if tangent is None else tangent(given, tangents)

    class Direct(torch.autograd.Function):
        """The operator on plain tensors."""

        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            output = run(*given)
            keep(ctx, given, output)
            if forward_ad._current_level >= 0:
                _keep_for_forward(ctx, given)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
            check_batched(grads[0], name)
            return backward(ctx, *grads)

    class Transformed(torch.autograd.Function):
        """The operator on tensors of torch.func."""

        @staticmethod
        def forward(*given: Any) -> Any:
            return run(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            keep(ctx, inputs, output)
            _keep_for_forward(ctx, inputs)
            if not isinstance(output, torch.Tensor):
                ctx.mark_non_differentiable(*(each for each in output if not each.is_floating_point()))

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
            return backward(ctx, *grads)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
            return looped(Transformed, info, in_dims, given)

    def call(*given: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
            return seen(*given)
        if frames_are_compiled():
            return apart(*given)
        if in_transform():
            return Transformed.apply(*given)
        in_forward_mode = forward_ad._current_level >= 0 and any(tangent_of(each) is not None for each in given)
        if _is_watched(given) and not in_forward_mode:
            return seen(*given)
        if in_forward_mode or (torch.is_grad_enabled() and any(
                isinstance(each, torch.Tensor) and each.requires_grad for each in given)):
            return Direct.apply(*given)
        return run(*given)

    apart = torch._disable_dynamo(call)
    Direct.jvp = Transformed.jvp = staticmethod(jvp)
    for function in (Direct, Transformed):
        function.__name__ = function.__qualname__ = f"sparloom_{name}"
    return call


def _keep_for_forward(ctx: Any, given: tuple[Any, ...]) -> None:
    ctx.given = tuple(TENSOR if isinstance(each, torch.Tensor) else each for each in given)
    ctx.save_for_forward(*(each for each in given if isinstance(each, torch.Tensor)))


def _sum_of_slopes(call: Any, given: tuple[Any, ...], tangents: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    """Add up what an operator gives with one argument after the other replaced by its derivative."""
    parts = [call(*given[:place], slope, *given[place + 1:]) for place, slope in enumerate(tangents)
             if isinstance(slope, torch.Tensor) and given[place].is_floating_point()]
    return sum(parts[1:], parts[0]) if parts else None


def _is_watched(given: tuple[Any, ...]) -> bool:
    """Whether a tracer, the profiler or a subclass of tensors wants to see operators: torch.jit.trace, say."""
    return (torch._C._is_tracing() or torch._C._autograd._profiler_enabled()
            or not all(type(each) in PLAIN for each in given if isinstance(each, torch.Tensor)))
