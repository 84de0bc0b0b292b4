"""How operators of torch.ops.sparloom are registered."""

from typing import Any

import torch

from sparloom.nn.csr_given import DEVICES
from sparloom.nn.eager import frames_are_compiled
from sparloom.nn.transforms import refuse_forward_mode

__all__ = ["Gradients", "define"]

Gradients = tuple[torch.Tensor | None, ...]
PLAIN = (torch.Tensor, torch.nn.Parameter)


def define(name: str, schema: str, *, run: Any, fake: Any, keep: Any, backward: Any) -> Any:
    """Register an operator for the CPU and GPUs; not by torch.library.custom_op, whose first call imports the compiler.

    The way through torch's dispatcher and back is in Python and longer than many kernels. Where nobody is there to see
    the operator, calls take a shorter one, with the same gradients.

    Args:
        run: computes, on tensors that hold numbers.
        fake: makes an empty result, for tracing.
        keep: stores what `backward` needs.

    Returns:
        A function of the operator's arguments.
    """
    full = f"sparloom::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, DEVICES)(run)
    torch.library.register_fake(full)(fake)
    torch.library.register_autograd(full, backward, setup_context=keep)
    seen = getattr(torch.ops.sparloom, name).default

    class Direct(torch.autograd.Function):
        """The operator on plain tensors."""

        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            output = run(*given)
            keep(ctx, given, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
            return backward(ctx, *grads)

    class Transformed(torch.autograd.Function):
        """The operator below one of torch.func's transforms, which is gone while `forward` and `vmap` run."""

        @staticmethod
        def forward(*given: Any) -> Any:
            return call(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            keep(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
            return backward(ctx, *grads)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
            def one(place: int) -> Any:
                return call(*(each if dim is None else each.select(dim, place) if info.batch_size else each.sum(dim)
                              for each, dim in zip(given, in_dims, strict=True)))

            results = [one(place) for place in range(max(1, info.batch_size))]  # the shape, where the batch is empty
            if isinstance(results[0], tuple):
                stacked = tuple(torch.stack(parts)[:info.batch_size] for parts in zip(*results, strict=True))
                return stacked, (0,) * len(stacked)
            return torch.stack(results)[:info.batch_size], 0

    def call(*given: Any) -> Any:
        if torch.compiler.is_compiling():
            return seen(*given)
        if frames_are_compiled():
            return apart(*given)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return Transformed.apply(*given)
        if _is_watched(given):
            return seen(*given)
        refuse_forward_mode(name, given)
        if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in given):
            return Direct.apply(*given)
        return run(*given)

    apart = torch._disable_dynamo(call)
    for function in (Direct, Transformed):
        function.__name__ = function.__qualname__ = f"sparloom_{name}"
    return call


def _is_watched(given: tuple[Any, ...]) -> bool:
    """Whether a tracer, a mode or a subclass of tensors wants to see operators: torch.jit.trace, counting of flops."""
    return (torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
            or torch._C._autograd._profiler_enabled()
            or not all(type(each) in PLAIN for each in given if isinstance(each, torch.Tensor)))
