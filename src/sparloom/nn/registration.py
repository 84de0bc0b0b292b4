"""How operators of torch.ops.sparloom are registered."""

from typing import Any

import torch
from torch.autograd import forward_ad

from sparloom.nn.autocast import DEVICES
from sparloom.nn.derivatives import check_batched, in_transform, looped, tangent_of
from sparloom.nn.eager import frames_are_compiled

__all__ = ["Gradients", "define"]

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
