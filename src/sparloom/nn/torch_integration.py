"""How many threads operations on the CPU have.

Operands under torch.autocast: kernels compute in float32 there, like operations on torch's own float32 list.

What layers have in common: they refuse TorchScript, which cannot record compiled programs, and check attributes.

What torch.compile does not follow: functions that it calls as they are, and tensors inside sparse ones.

Modules inside a layer whose weights are read without calling them: what a call of them would do besides.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

import torch
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from sparloom.measure import checked_threads

__all__ = [
    "DEVICES", "TYPES", "Layer", "accept_sparse_parts", "autocast_operands", "check_counts", "check_flag",
    "check_real", "eager", "frames_are_compiled", "is_plain", "prepare_weights", "refuse_tracing", "remedy",
    "torch_threads", "unscriptable",
]


def torch_threads() -> int:
    """Give as many as torch has.

    Raises:
        ValueError: those are more than can run; see `checked_threads`.
    """
    return checked_threads(torch.get_num_threads(), "torch.get_num_threads()")


TYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "cpu": (torch.float32,), "cuda": (torch.float32, torch.float16, torch.bfloat16)}
"""Device that operations compute on -> types of numbers there."""

DEVICES = tuple(TYPES)
HALVES = (torch.float16, torch.bfloat16)


def autocast_operands(*given: Any) -> tuple[Any, ...]:
    """Convert operands of half precision to float32 where autocast is on for their device.

    Operands on a GPU that are all of one type keep it: kernels there read float16 and bfloat16. Everything else,
    float64 and what is no tensor included, is passed on as it is.
    """
    for each in given:
        if isinstance(each, torch.Tensor) and each.dtype in HALVES:
            break
    else:
        return given  # as nearly always
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    devices = {each.device.type for each in tensors if each.dtype in HALVES}
    if not devices & {"cpu", "cuda"} or not torch.is_autocast_enabled(min(devices)):
        return given
    if devices == {"cuda"} and len({each.dtype for each in tensors}) == 1:
        return given
    return tuple(each.float() if isinstance(each, torch.Tensor) and each.dtype in HALVES else each for each in given)


def remedy(given: torch.Tensor, conversion: str) -> str:
    """Say what to do with numbers of a type that operations do not take."""
    return ("complex numbers are not computed with: give the real and the imaginary part, one after the other, as "
            "float32" if given.is_complex() else conversion)


F = TypeVar("F", bound=Callable[..., Any])


class Layer(torch.nn.Module):
    """A module that runs compiled programs.

    An attribute that is set after construction either changes what the layer computes, or is refused: by
    `sizes`, attributes that parameters were made for; by `only`, the one value that this layer has of an attribute
    that torch's or PyTorch Geometric's layer reads; by `accepted`, what else a layer cannot follow.
    """

    sizes: ClassVar[frozenset[str]] = frozenset()
    only: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.sizes and name in self.__dict__ and self.__dict__[name] != value:
            raise ValueError(f"{name}={value!r}: the parameters of this {type(self).__name__} were made for "
                             f"{name}={self.__dict__[name]!r}: construct another layer")
        if name in self.only and not _is(value, self.only[name]):
            raise ValueError(f"{name}={value!r}: {type(self).__name__} has {name}={self.only[name]!r} only: use the "
                             "layer that it takes the place of")
        super().__setattr__(name, self.accepted(name, value))

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse a value of an attribute that this layer cannot follow; gives what is kept.

        Raises:
            TypeError, ValueError: the message names the attribute and what it may be.
        """
        return value

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which asks every module in a model.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_unscriptable(type(self).__name__, "modules"))


def unscriptable(function: F) -> F:
    """Let torch.jit.script refuse a function in plain words, also where a scripted function or module calls it."""
    function.__script_unsupported = _unscriptable(function.__name__, "functions")
    return function


def check_counts(**given: Any) -> None:
    """Refuse arguments of a layer, by name, that do not count anything.

    Raises:
        TypeError: one is no whole number.
        ValueError: one is below 1.
    """
    for name, count in given.items():
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise TypeError(f"{name}={count!r}: give a whole number, at least 1")
        if count < 1:
            raise ValueError(f"{name}={count}: give at least 1")


def check_flag(name: str, value: Any, *, parameters: bool = True) -> None:
    """Refuse what is neither True nor False, and a part of the layer whose parameters were not made.

    Raises:
        TypeError: it is another type.
        ValueError: it is True without `parameters`.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: give True or False")
    if value and not parameters:
        raise ValueError(f"{name}=True: this layer was constructed without: construct another with {name}=True")


def check_real(name: str, value: Any) -> None:
    """Refuse what is no real number.

    Raises:
        TypeError: it is another type.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r}: give a number")


def refuse_tracing() -> None:
    """Refuse torch.jit.trace, which would keep what a program computes as a constant of the traced module.

    Raises:
        RuntimeError: it is tracing.
    """
    if torch._C._is_tracing():
        raise RuntimeError("torch.jit.trace would record the result of a layer of sparloom.nn as a constant: use "
                           "torch.compile, or trace the modules around this one")


def _unscriptable(name: str, kind: str) -> str:
    return (f"{name} cannot be scripted: TorchScript does not call the compiled programs of sparloom.nn: use "
            f"torch.compile, or script the {kind} around this one")


def _is(value: Any, only: Any) -> bool:
    return type(value) in (bool, int, float, str, type(None)) and value == only


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


WEIGHT_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)
"""Hooks that compute the weight of a module before each call, and look at nothing else."""


def is_plain(module: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    """Tell whether a call of a module does what `kind` does with its weights, and no more.

    It does more where hooks see or change it, as those of pruning, and of weight_norm and spectral_norm in their older
    forms, which make the weight; and where another module was put in its place, such as an adapter.
    """
    return type(module).forward is kind.forward and "forward" not in module.__dict__ and not (
        module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks)


def prepare_weights(kind: type[torch.nn.Module], **modules: torch.nn.Module) -> None:
    """Compute the weights of modules that a program reads, where hooks make them.

    Args:
        kind: class whose forward the program computes.
        modules: by their names in the layer.

    Raises:
        RuntimeError: one has other hooks, or is of another class, which the program would pass by.
    """
    for name, module in modules.items():
        if is_plain(module, kind):
            continue
        makers = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, WEIGHT_HOOKS)]
        others = (len(module._forward_pre_hooks) > len(makers) or module._forward_hooks or module._backward_hooks
                  or module._backward_pre_hooks)
        if others or not makers:
            raise RuntimeError(f"{name} is not called in this layer, which computes as one program: its hooks, or what "
                               "was put in its place, would do nothing: register hooks on the layer itself, or use "
                               "torch.nn.utils.parametrize")
        for hook in makers:
            hook(module, ())
