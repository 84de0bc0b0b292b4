"""Find out whether an encoder is what its packed programs compute, and notice every later change.

Programs replace the code of whole layers, so a hook, an adapter or another attention inside a layer would have no
effect. `check_modules` compares an encoder with a new one of its class; `ModuleSnapshot` and `CheckedLayers` tell in
one pass over all modules and parameters that nothing has changed since then.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.nn.content_hash import PLAIN_TENSORS, SpanFingerprint
from sparloom.nn.ragged_programs import SAMPLED_BLOCKS

SCALARS = (bool, int, float, str, types.NoneType)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
FREE_ATTRIBUTES = {  # which programs read, or which change no result: they may differ from those of a new encoder
    "training", "p", "eps", "variance_epsilon", "dropout", "attention_dropout", "in_features", "out_features",
    "inplace", "layer_idx", "gradient_checkpointing", "_is_hf_initialized"}
BY_TOKEN_CLASSES = (torch.nn.Embedding, torch.nn.Linear, torch.nn.Dropout, torch.nn.Identity, torch.nn.LayerNorm,
                    torch.nn.RMSNorm)  # which compute each token by itself, if norms have one dimension
PARTS = itemgetter(*HOOKS, "_modules")  # of the attributes of a module
VERSION = torch._C.TensorBase._version.__get__
ADAPTER = ("peft.tuners.lora.layer", "Linear")
ADAPTER_PARTS = (torch.nn.Linear, torch.nn.Dropout, torch.nn.Identity, torch.nn.ModuleDict, torch.nn.ParameterDict)


def check_modules(module: torch.nn.Module, reference: torch.nn.Module, path: str,
                  layers: tuple[torch.nn.Module, ...] = ()) -> None:
    """Check that a module, with all inside it, computes what a new one of its class computes with these parameters.

    Args:
        reference: the new module; its parameters are not read.
        layers: modules of layers in the reference. Each layer of the module must be like one of them, in any order.

    Raises:
        Unsupported: a module is of another class, has a hook or a replaced method, or another attribute; says which.
    """
    if has_adapters(module):
        _check_adapters(module, path)
        module = module.base_layer
    check_untouched(module, path)
    if type(module) is not type(reference):
        raise Unsupported(f"{path or 'it'} is a {_full_name(module)}, not the {_full_name(reference)} that packed "
                          "programs compute: merge adapters into the model, and pack it before it is quantised or "
                          "parametrised")
    for name, value in vars(reference).items():
        if isinstance(value, (*SCALARS, *FUNCTIONS)) and name not in FREE_ATTRIBUTES and (
                vars(module).get(name) != value):
            raise Unsupported(f"{path + '.' if path else ''}{name} is {vars(module).get(name)!r}, and packed programs "
                              f"compute {value!r}")
    if layers and tuple(reference.children()) == layers:
        for number, (name, layer) in enumerate(module.named_children()):
            _check_layer(layer, (layers[min(number, len(layers) - 1)], *layers), f"{path}.{name}")
        return
    for kind in ("_modules", "_parameters"):
        names, expected = getattr(module, kind), getattr(reference, kind)
        if names.keys() != expected.keys():
            raise Unsupported(f"{path or 'it'} has the {kind[1:]} {', '.join(names)}, and packed programs compute "
                              f"{', '.join(expected)}")
    for name, part in module._modules.items():
        if part is not None:
            check_modules(part, reference._modules[name], f"{path}.{name}" if path else name, layers)


def _check_layer(layer: torch.nn.Module, references: Sequence[torch.nn.Module], path: str) -> None:
    """Check that a layer is like one of the references, of which the first one is in the same place."""
    errors = []
    for reference in references:
        try:
            return check_modules(layer, reference, path)
        except Unsupported as error:
            errors.append(error)
    raise errors[0]


def check_untouched(module: torch.nn.Module, path: str, *, is_called: bool = False) -> None:
    """Check that calling a module runs the code of its class.

    Args:
        is_called: see `check_methods`.

    Raises:
        Unsupported: it has hooks, or a method was replaced, in it or in its class.
    """
    kind, remedy = type(module), "remove it, or call sparloom.nn.unpack(model) first"
    for hook in chain.from_iterable(getattr(module, name).values() for name in HOOKS):
        if not str(getattr(hook, "__module__", "")).startswith("transformers."):  # theirs record outputs on request
            raise Unsupported(f"{path} has a hook, {getattr(hook, '__qualname__', hook)}: {remedy}")
    check_methods(module, kind, path, is_called=is_called)


def check_methods(module: torch.nn.Module, kind: type[torch.nn.Module], path: str, *, is_called: bool = False) -> None:
    """Check that the methods of a module, other than its `forward` if it is the encoder itself, are those of its class.

    Args:
        kind: the class, of the library.
        is_called: the module itself runs, so that its methods may have decorators of torch, such as no_grad.

    Raises:
        Unsupported: a method was replaced, in the module or in its class.
    """
    replaced = [name for name in vars(module) if callable(getattr(kind, name, None)) and (path or name != "forward")]
    replaced += [name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)
                 and _home(value, through_torch=is_called) != _package(kind.__module__) and not name.startswith("__")]
    if replaced:
        raise Unsupported(f"{path + '.' if path else ''}{replaced[0]} was replaced: restore it, or call "
                          "sparloom.nn.unpack(model) first")


def check_called(module: torch.nn.Module, reference: torch.nn.Module | None, path: str) -> None:
    """Check a module that is called with packed tokens, such as embeddings: it must compute each token by itself.

    Args:
        reference: the module in a new encoder, whose classes do so.

    Raises:
        Unsupported: it, or a part, has hooks or replaced methods, or is of another class that may mix tokens.
    """
    classes = {type(part) for part in (() if reference is None else reference.modules())}
    for name, part in module.named_modules(prefix=path):
        check_untouched(part, name, is_called=True)
        is_wide_norm = len(getattr(part, "normalized_shape", (1,))) > 1
        if is_wide_norm or not (type(part) in BY_TOKEN_CLASSES or type(part) in classes
                                or _package(type(part).__module__) == "peft"):
            raise Unsupported(f"{name} is a {_full_name(part)}, which may need padded batches")


def has_adapters(module: torch.nn.Module) -> bool:
    """Tell whether a module is a torch.nn.Linear to which PEFT has added LoRA adapters."""
    kind = type(module)
    return kind is not torch.nn.Linear and (kind.__module__, kind.__name__) == ADAPTER


def _check_adapters(module: torch.nn.Module, path: str) -> None:
    check_untouched(module, path)
    for name, part in module.named_modules(prefix=path):
        if part is module or part is module.base_layer:
            continue
        check_untouched(part, name)
        if type(part) not in ADAPTER_PARTS and _package(type(part).__module__) != "peft":
            raise Unsupported(f"{name} is a {_full_name(part)}: packed programs compute adapters of torch.nn.Linear")


def adapter_flags(module: Any) -> tuple[Any, ...]:
    """Return what decides which adapters add to the weight of a module, and how much."""
    return module.disable_adapters, *module.active_adapters, *module.merged_adapters, *module.scaling.values()


def _full_name(module: torch.nn.Module) -> str:
    return f"{type(module).__name__} of {type(module).__module__}"


def _home(function: types.FunctionType, *, through_torch: bool) -> str:
    """Return the package that defines a function, or what a decorator of torch wraps."""
    home = _package(function.__globals__["__name__"])
    if home == "torch" and through_torch and hasattr(function, "__wrapped__"):
        return _home(function.__wrapped__, through_torch=True)
    return home


def _package(name: str) -> str:
    return name.partition(".")[0]


class ModuleSnapshot:
    """The modules of an encoder as they were when they were checked.

    Args:
        root: the encoder itself; not kept alive.
        modules: all inside it whose change matters.
        programmed: those of them that programs replace, whose attributes are compared, too.
        settings: further objects with attributes, such as the configuration.
    """

    def __init__(self, root: torch.nn.Module, modules: Sequence[torch.nn.Module],
                 programmed: Sequence[torch.nn.Module], settings: Sequence[Any] = ()) -> None:
        self._modules = list(modules)
        classes = dict.fromkeys([*type(root).__mro__[1:], *map(type, modules)])
        self._class_members = [vars(kind) for kind in classes if kind.__module__ not in (
            "torch.nn.modules.module", "transformers.modeling_utils", "builtins")]
        self._attributes = list(map(vars, modules))
        self._parts = list(map(PARTS, self._attributes))
        hooks = [each for parts in self._parts for each in parts[:len(HOOKS)]]
        self._without_hooks = [each for each in hooks if not each]
        self._with_hooks = [each for each in hooks if each]
        self._children = [root._modules, *[parts[-1] for parts in self._parts if parts[-1]]]
        self.parameters = [each._parameters for each in (root, *programmed) if each._parameters]
        holders = [each for each in (*programmed, *settings) if type(each) is not torch.nn.Linear]
        places = [(vars(each), name) for each in holders for name, value in vars(each).items()
                  if isinstance(value, (*SCALARS, *FUNCTIONS)) and name not in ("training", "layer_idx")]
        self._holders, self._names = [place[0] for place in places], [place[1] for place in places]
        self._root_names = [name for name, value in vars(root).items()
                            if isinstance(value, (*SCALARS, *FUNCTIONS)) and name != "training"]
        self._before = self._collect(root)

    def unchanged(self, root: torch.nn.Module) -> bool:
        """Tell whether all modules, hooks, methods and attributes are the same as at first, and parameters by name."""
        return (not any(self._without_hooks) and root._modules is self._children[0]
                and list(map(PARTS, self._attributes)) == self._parts and self._collect(root) == self._before)

    def _collect(self, root: torch.nn.Module) -> tuple[Any, ...]:
        own = vars(root)
        return (
            list(chain.from_iterable(map(dict.values, self._children))), list(map(type, self._modules)),
            list(map(len, self._attributes)), list(map(dict.get, self._holders, self._names)),
            len(own), root.watched_values(), [own.get(name) for name in self._root_names],
            list(chain.from_iterable([members.values() for members in self._class_members])),
            list(map(len, self.parameters)), [list(each.values()) for each in self._with_hooks])


class CheckedLayers:
    """The parameters of layers as they were before they were packed."""

    def __init__(self, homes: Sequence[Mapping[str, torch.Tensor | None]]) -> None:
        self._homes, self._values = homes, list(chain.from_iterable([each.values() for each in homes]))
        self._tensors = [each for each in self._values if each is not None]
        self._matrices = [each for each in self._tensors if each.dim() > 1]
        self._counts = self._count()
        self._fingerprint = SpanFingerprint(self._tensors, sample=SAMPLED_BLOCKS)

    @classmethod
    def of(cls, layers: Iterable[torch.nn.Module]) -> CheckedLayers | None:
        """Remember all parameters of layers; None if one is no plain contiguous tensor, whose writes torch counts."""
        homes = [part._parameters for layer in layers for part in layer.modules() if part._parameters]
        plain = all(tensor is None or (type(tensor) in PLAIN_TENSORS and tensor.is_cpu and tensor.is_contiguous()
                                       and not tensor.is_inference() and not tensor.is_neg())
                    for home in homes for tensor in home.values())
        return cls(homes) if plain else None

    def unchanged(self) -> bool:
        """Tell whether these are the same tensors, with the same content as far as `sampled_hash` compares it."""
        values = list(chain.from_iterable(map(dict.values, self._homes)))
        return (len(values) == len(self._values) and all(map(is_, values, self._values))
                and self._count() == self._counts and self._fingerprint.unchanged())

    def _count(self) -> tuple[list[Any], ...]:
        return (list(map(VERSION, self._tensors)), list(map(torch.Tensor.data_ptr, self._tensors)),
                list(map(torch.Tensor.is_contiguous, self._matrices)))
