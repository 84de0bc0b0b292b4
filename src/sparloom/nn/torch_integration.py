"""Adapt functions and modules to torch: autocast, TorchScript, torch.compile, hooks of submodules, threads."""

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

SUPPORTED_DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "cpu": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "cuda": (torch.float32, torch.float16, torch.bfloat16)}
"""Device type -> dtypes that sparse operations support there."""

SUPPORTED_DEVICES = tuple(SUPPORTED_DTYPES)
HALF_DTYPES = (torch.float16, torch.bfloat16)
WEIGHT_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)
"""Forward pre-hooks that only recompute the weight of a module."""

F = TypeVar("F", bound=Callable[..., Any])
P, R = ParamSpec("P"), TypeVar("R")


class CompiledModule(torch.nn.Module):
    """Base class of modules that run compiled programs.

    Setting an attribute after construction either changes what the module computes or raises an error.
    `fixed_attributes` determine the shapes of parameters and cannot change. `required_attributes` are read by torch's
    or PyTorch Geometric's module, and this one supports one value of each. `validated` checks all others.
    """

    fixed_attributes: ClassVar[frozenset[str]] = frozenset()
    required_attributes: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.fixed_attributes and name in self.__dict__ and self.__dict__[name] != value:
            raise ValueError(f"{name}={value!r}: the parameters of this {type(self).__name__} were created for "
                             f"{name}={self.__dict__[name]!r}: construct a new module")
        if name in self.required_attributes and not _is_same_scalar(value, self.required_attributes[name]):
            raise ValueError(f"{name}={value!r}: {type(self).__name__} supports only "
                             f"{name}={self.required_attributes[name]!r}: use the module that it replaces")
        super().__setattr__(name, self.validated(name, value))

    def validated(self, name: str, value: Any) -> Any:
        """Check the value of an attribute and return the value to store.

        Raises:
            TypeError, ValueError: the module does not support it; names the attribute and its possible values.
        """
        return value

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which calls this on every submodule."""
        raise RuntimeError(_unscriptable(type(self).__name__, "modules"))


def check_positive_ints(**arguments: Any) -> None:
    """Check that arguments of a module, by name, are positive integers."""
    for name, count in arguments.items():
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise TypeError(f"{name}={count!r}: expected a positive int")
        if count < 1:
            raise ValueError(f"{name}={count}: expected a positive int")


def check_bool(name: str, value: Any, *, has_parameters: bool = True) -> None:
    """Check a flag.

    Args:
        has_parameters: whether the module has the parameters that True needs.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: expected a bool")
    if value and not has_parameters:
        raise ValueError(f"{name}=True: this module was constructed with {name}=False and lacks the parameters: "
                         "construct a new one")


def check_real(name: str, value: Any) -> None:
    """Check that an argument is a real number, not a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r}: expected a float")


def torch_threads() -> int:
    """Return torch's number of threads, which operations on the CPU use."""
    return checked_threads(torch.get_num_threads(), "torch.get_num_threads()")


def autocast_operands(*operands: Any) -> tuple[Any, ...]:
    """Convert float16 and bfloat16 tensors to float32 if autocast is enabled for their device.

    CUDA tensors that all have the same dtype keep it, because kernels there support it. Everything else, float64
    tensors and non-tensors included, is returned unchanged.
    """
    for each in operands:
        if isinstance(each, torch.Tensor) and each.dtype in HALF_DTYPES:
            break
    else:
        return operands  # the usual case
    tensors = [each for each in operands if isinstance(each, torch.Tensor)]
    devices = {each.device.type for each in tensors if each.dtype in HALF_DTYPES}
    if not devices & {"cpu", "cuda"} or not torch.is_autocast_enabled(min(devices)):
        return operands
    if devices == {"cuda"} and len({each.dtype for each in tensors}) == 1:
        return operands
    return tuple(each.float() if isinstance(each, torch.Tensor) and each.dtype in HALF_DTYPES else each
                 for each in operands)


def promoted_operands(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convert tensors of several dtypes to the one that torch promotes them to; gradients return to each one's dtype.

    The dtypes must be among those that sparse operations support.
    """
    dtype = operands[0].dtype
    for each in operands:
        if each.dtype != dtype:
            break
    else:
        return operands  # the usual case
    dtype = functools.reduce(torch.promote_types, [each.dtype for each in operands])
    return tuple(each.to(dtype) for each in operands)


def dtype_remedy(tensor: torch.Tensor, conversion: str) -> str:
    """Say what to do with a tensor of an unsupported dtype."""
    return ("complex dtypes are not supported: pass the real and the imaginary part separately as float32"
            if tensor.is_complex() else conversion)


def unscriptable(function: F) -> F:
    """Make torch.jit.script refuse a function with a clear message, also when scripted code calls it."""
    function.__script_unsupported = _unscriptable(function.__name__, "functions")
    return function


def refuse_tracing() -> None:
    """Refuse torch.jit.trace, which would record the result of a compiled program as a constant."""
    if torch._C._is_tracing():
        raise RuntimeError("torch.jit.trace would record the result of a module of sparloom.nn as a constant: use "
                           "torch.compile, or trace the modules around this one")


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function, and all that it calls, from the graphs of torch.compile; refuse torch.jit.trace.

    Does the same as torch.compiler.disable, without importing the compiler, which takes seconds.
    """
    disabled = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling() or dynamo_is_active():
            return disabled(*arguments, **options)
        refuse_tracing()
        return function(*arguments, **options)

    return call


def dynamo_is_active() -> bool:
    """Return whether torch.compile intercepts Python frames now, also if it does not trace this one."""
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def support_sparse_parts_in_dynamo() -> None:
    """Let torch.compile accept `A.values()` of a sparse tensor as a graph input; called while it traces.

    The values are a view of A. Torch 2.13 also describes the base of every view that enters a graph, and fails for a
    sparse base with "IndexError: tuple index out of range". This patch describes a dense alias instead of the view and
    omits the base; the graph still receives the tensor itself.
    """
    builder, describer = torch._dynamo.variables.builder, torch._subclasses.meta_utils.MetaTensorDescriber
    wrap, choose, describe = (builder.wrap_to_fake_tensor_and_record, builder._automatic_dynamic,
                              describer.describe_tensor)
    if hasattr(wrap, "accepts_sparse_parts"):
        return

    @functools.wraps(wrap)
    def wrap_without_base(tensor: Any, *arguments: Any, source: Any = None, **options: Any) -> Any:
        is_sparse_base = getattr(source, "member", "") == "_base" and tensor.layout != torch.strided
        return None if is_sparse_base else wrap(tensor, *arguments, source=source, **options)

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


support_sparse_parts_in_dynamo._dynamo_marked_constant = True  # torch.compile runs it instead of tracing it


def check_shapes(
    operands: Mapping[str, torch.Tensor | None], expected: Mapping[str, tuple[int, ...]], context: str,
) -> None:
    """Refuse tensors of other shapes than the kernel will read.

    Args:
        operands, expected: tensors and their shapes, by name; None: not passed.
        context: what the shapes follow from, for the message.

    Raises:
        ValueError: a shape differs.
    """
    for name, shape in expected.items():
        tensor = operands[name]
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {tuple(shape)} for {context}: layers "
                             "before it must return one row for each row of their input, of the width that this "
                             "layer was made for")


def is_original(function: Any, module: str) -> bool:
    """Return whether a function was defined in the package of this module, not by whoever replaced it there."""
    package = getattr(function, "__globals__", {}).get("__name__", "").partition(".")[0]
    return package == module.partition(".")[0]


def has_default_forward(module: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    """Return whether calling a module only applies `kind.forward` to its weights.

    This is not so if hooks are registered, among them those of pruning and of the older weight_norm and spectral_norm,
    which recompute the weight, or if the module was replaced, for example by an adapter.
    """
    return type(module).forward is kind.forward and is_original(kind.forward, kind.__module__) and (
        "forward" not in module.__dict__) and not (
        module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks)


def run_weight_hooks(kind: type[torch.nn.Module], **modules: torch.nn.Module) -> None:
    """Run the hooks that recompute the weights of modules that a program reads without calling them.

    Args:
        kind: class whose forward the program implements.
        modules: by their names in the layer.
    """
    for name, module in modules.items():
        if has_default_forward(module, kind):
            continue
        weight_hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, WEIGHT_HOOKS)]
        others = (len(module._forward_pre_hooks) > len(weight_hooks) or module._forward_hooks
                  or module._backward_hooks or module._backward_pre_hooks)
        if others or not weight_hooks:
            raise RuntimeError(f"{name} is not called in this layer, which runs as one program, so its hooks or its "
                               "replacement would have no effect: register hooks on the layer itself, or use "
                               "torch.nn.utils.parametrize")
        for hook in weight_hooks:
            hook(module, ())


def _unscriptable(name: str, kind: str) -> str:
    return (f"{name} cannot be scripted: TorchScript cannot call the compiled programs of sparloom.nn: use "
            f"torch.compile, or script the {kind} around this one")


def _is_same_scalar(value: Any, required: Any) -> bool:
    return type(value) in (bool, int, float, str, type(None)) and value == required


def _is_sparse_part(tensor: torch.Tensor) -> bool:
    return tensor._is_view() and tensor._base.layout not in (torch.strided, torch.jagged)


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory that is not a view, also while a compiler intercepts operators."""
    with torch._C._DisableTorchDispatch():
        return tensor.detach().requires_grad_(tensor.requires_grad)
