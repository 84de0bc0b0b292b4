"""Operators of torch.ops.sparloom: their registration, and which derivatives may be requested of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad

from sparloom.nn.torch_integration import SUPPORTED_DEVICES, dynamo_is_active

Gradients = tuple[torch.Tensor | None, ...]
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
TENSOR_PLACEHOLDER = object()  # stands for a tensor that is saved separately


def define_operator(
    name: str, schema: str, *, run: Any, fake: Any, setup_context: Any, backward: Any, jvp: Any = None,
) -> Any:
    """Register an operator for CPU and CUDA without torch.library.custom_op, whose first call imports the compiler.

    torch's dispatcher calls Python implementations more slowly than many kernels run. Calls that nothing intercepts
    bypass it, with the same gradients. So do calls under torch.func and in forward mode, which torch.library does not
    support.

    Args:
        run: the implementation.
        fake: returns an empty result, for tracing.
        setup_context: saves what `backward` needs.
        jvp: returns the derivative in forward mode, given the arguments and their tangents (None where there is none).
            Default: the operator is linear in each of its tensors.

    Returns:
        A function of the operator's arguments.
    """
    full = f"sparloom::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, SUPPORTED_DEVICES)(run)
    torch.library.register_fake(full)(fake)
    torch.library.register_autograd(full, backward, setup_context=setup_context)
    dispatched = getattr(torch.ops.sparloom, name).default

    def forward_derivative(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        saved = iter(ctx.saved_tensors)
        inputs = tuple(next(saved) if each is TENSOR_PLACEHOLDER else each for each in ctx.inputs)
        return _linear_jvp(call, inputs, tangents) if jvp is None else jvp(inputs, tangents)

    class Direct(torch.autograd.Function):
        """The operator on plain tensors."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = run(*inputs)
            setup_context(ctx, inputs, output)
            if forward_ad._current_level >= 0:
                _save_for_jvp(ctx, inputs)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
            for grad in grads:
                if grad is not None:
                    refuse_legacy_vmap(grad, name)
            return backward(ctx, *grads)

    class Transformed(torch.autograd.Function):
        """The operator on tensors of torch.func."""

        @staticmethod
        def forward(*inputs: Any) -> Any:
            return run(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            setup_context(ctx, inputs, output)
            _save_for_jvp(ctx, inputs)
            if not isinstance(output, torch.Tensor):
                ctx.mark_non_differentiable(*(each for each in output if not each.is_floating_point()))

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
            return backward(ctx, *grads)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
            return vmap_by_loop(Transformed, info, in_dims, inputs)

    def call(*inputs: Any) -> Any:
        if is_plain():
            needs_gradient = False
            for each in inputs:
                if isinstance(each, torch.Tensor):
                    if type(each) not in PLAIN_TENSORS:
                        return dispatched(*inputs)
                    needs_gradient = needs_gradient or each.requires_grad
            return Direct.apply(*inputs) if needs_gradient and torch.is_grad_enabled() else run(*inputs)
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
            return dispatched(*inputs)
        if dynamo_is_active():
            return outside_dynamo(*inputs)
        if in_functorch():
            return Transformed.apply(*inputs)
        in_forward_mode = forward_ad._current_level >= 0 and any(forward_tangent(each) is not None for each in inputs)
        if _must_dispatch(inputs) and not in_forward_mode:
            return dispatched(*inputs)
        return Direct.apply(*inputs)

    outside_dynamo = torch._disable_dynamo(call)
    Direct.jvp = Transformed.jvp = staticmethod(forward_derivative)
    for function in (Direct, Transformed):
        function.__name__ = function.__qualname__ = f"sparloom_{name}"
    return call


def is_plain() -> bool:
    """Return whether nothing of torch watches or transforms operations: only autograd may record them."""
    return not (
        torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None or torch._C._is_tracing()
        or torch._C._autograd._profiler_enabled() or dynamo_is_active())


def in_functorch() -> bool:
    """Return whether a torch.func transform is active; its tensors have no data that could be read."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def without_functorch() -> AbstractContextManager[None]:
    """Suspend torch.func transforms for operations on untransformed tensors, whose results would be wrapped."""
    return torch._C._DisableFuncTorch() if in_functorch() else nullcontext()


def refuse_legacy_vmap(tensor: torch.Tensor, name: str) -> None:
    """Refuse tensors of the legacy vmap that torch.autograd uses, which autograd functions cannot recognise."""
    if not torch.compiler.is_compiling() and torch._C._functorch.is_legacy_batchedtensor(tensor):
        raise RuntimeError(f"{name} does not support gradients batched by is_grads_batched=True or vectorize=True, of "
                           "first or second order: use torch.func.jacrev, or neither of these options")


def needs_derivatives(tensors: Iterable[Any]) -> bool:
    """Return whether backward may be called later, or forward-mode derivatives are being computed."""
    candidates = [each for each in tensors if isinstance(each, torch.Tensor)]
    return ((torch.is_grad_enabled() and any(each.requires_grad for each in candidates))
            or (forward_ad._current_level >= 0 and any(forward_tangent(each) is not None for each in candidates)))


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Return whether derivatives with respect to this tensor may be requested or are being computed."""
    return (tensor.requires_grad or forward_tangent(tensor) is not None
            or (in_functorch() and torch._C._functorch.is_functorch_wrapped_tensor(tensor)))


def forward_tangent(tensor: Any) -> torch.Tensor | None:
    """Return the forward-mode tangent of a tensor, if it has one."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0 or not isinstance(tensor, torch.Tensor):
        return None
    refuse_legacy_vmap(tensor, "this operation")
    return forward_ad.unpack_dual(tensor).tangent


def vmap_by_loop(
    function: type[torch.autograd.Function], info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...],
) -> tuple[Any, Any]:
    """Implement torch.func.vmap by a loop over the batch.

    Args:
        function: returns a tensor or a tuple of tensors.
        info, in_dims, inputs: as passed to `torch.autograd.Function.vmap`.
    """
    def element(index: int) -> tuple[Any, ...]:
        return tuple(each if not isinstance(dim, int) else each.select(dim, index) if info.batch_size
                     else each.sum(dim) for each, dim in zip(inputs, in_dims, strict=True))

    results = [function.apply(*element(index)) for index in range(max(1, info.batch_size))]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results)[:info.batch_size], 0  # an empty batch keeps the shape of an element
    return tuple(torch.stack(parts)[:info.batch_size] for parts in zip(*results, strict=True)), (0,) * len(results[0])


def product_rule(
    multiply: Callable[..., torch.Tensor], factors: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """Differentiate a product of two factors in forward mode; at least one has a tangent."""
    pairs = (tangents[0], factors[1]), (factors[0], tangents[1])
    parts = [multiply(*pair) for pair in pairs if pair[0] is not None and pair[1] is not None]
    return sum(parts[1:], parts[0])


def _save_for_jvp(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.inputs = tuple(TENSOR_PLACEHOLDER if isinstance(each, torch.Tensor) else each for each in inputs)
    ctx.save_for_forward(*(each for each in inputs if isinstance(each, torch.Tensor)))


def _linear_jvp(
    call: Any, inputs: tuple[Any, ...], tangents: tuple[torch.Tensor | None, ...],
) -> torch.Tensor | None:
    """Sum the operator's results with one argument at a time replaced by its tangent."""
    parts = [call(*inputs[:index], tangent, *inputs[index + 1:]) for index, tangent in enumerate(tangents)
             if isinstance(tangent, torch.Tensor) and inputs[index].is_floating_point()]
    return sum(parts[1:], parts[0]) if parts else None


def _must_dispatch(inputs: tuple[Any, ...]) -> bool:
    """Return whether a tracer, the profiler or a tensor subclass needs to see the operator."""
    return (torch._C._is_tracing() or torch._C._autograd._profiler_enabled()
            or not all(type(each) in PLAIN_TENSORS for each in inputs if isinstance(each, torch.Tensor)))
