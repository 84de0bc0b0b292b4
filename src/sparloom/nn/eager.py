"""What torch.compile does not follow: functions that it calls as they are, and tensors inside sparse ones."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch

from sparloom.nn.transforms import refuse_tracing

__all__ = ["accept_sparse_parts", "eager", "frames_are_compiled"]

P, R = ParamSpec("P"), TypeVar("R")


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function out of the graphs of torch.compile, which cannot follow compiled programs.

    As torch.compiler.disable, which would import the compiler, for seconds, where nobody compiles. Functions that it
    calls are kept out, too. torch.jit.trace is refused.
    """
    apart = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling() or frames_are_compiled():
            return apart(*arguments, **options)
        refuse_tracing()
        return function(*arguments, **options)

    return call


def frames_are_compiled() -> bool:
    """Tell whether torch.compile takes the frames of Python that run now, also where it does not trace this one."""
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def accept_sparse_parts() -> None:
    """Let torch.compile take `A.values()` of a sparse tensor as an input of a graph; called while it traces.

    That tensor is a view of A. Torch 2.13 also describes the base of every view that enters a graph, and fails on a
    sparse one with "IndexError: tuple index out of range". Here a dense alias is described in place of the view, and
    the base is left out; the graph gets the tensor itself.
    """
    builder, describer = torch._dynamo.variables.builder, torch._subclasses.meta_utils.MetaTensorDescriber
    wrap, choose, describe = (builder.wrap_to_fake_tensor_and_record, builder._automatic_dynamic,
                              describer.describe_tensor)
    if hasattr(wrap, "accepts_sparse_parts"):
        return

    @functools.wraps(wrap)
    def wrap_without_base(tensor: Any, *arguments: Any, source: Any = None, **options: Any) -> Any:
        left_out = getattr(source, "member", "") == "_base" and tensor.layout != torch.strided
        return None if left_out else wrap(tensor, *arguments, source=source, **options)

    @functools.wraps(choose)
    def choose_without_base(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return choose(_alias(tensor) if _is_sparse_part(tensor) else tensor, *arguments, **options)

    @functools.wraps(describe)
    def describe_without_base(self: Any, tensor: torch.Tensor, **options: Any) -> Any:
        if not _is_sparse_part(tensor):
            return describe(self, tensor, **options)
        return replace(describe(self, _alias(tensor), **options), id=self.get_tensor_id(tensor))

    wrap_without_base.accepts_sparse_parts = True
    builder.wrap_to_fake_tensor_and_record, builder._automatic_dynamic = wrap_without_base, choose_without_base
    describer.describe_tensor = describe_without_base


accept_sparse_parts._dynamo_marked_constant = True  # torch.compile runs it instead of tracing it


def _is_sparse_part(tensor: torch.Tensor) -> bool:
    return tensor._is_view() and tensor._base.layout not in (torch.strided, torch.jagged)


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor on the same memory that is no view, also where a compiler watches operators."""
    with torch._C._DisableTorchDispatch():
        return tensor.detach().requires_grad_(tensor.requires_grad)
