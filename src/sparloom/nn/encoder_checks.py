"""Find out whether an encoder is what its packed programs compute, and notice every later change.

Programs replace the code of whole layers, so a hook, an adapter or another attention inside a layer would have no
effect. `check_modules` compares an encoder with a new one of its class; `ModuleSnapshot` and `CheckedLayers` tell in
one pass over all modules and parameters that nothing has changed since then.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.nn.content_hash import PLAIN_TENSORS, SpanFingerprint
from sparloom.nn.ragged_programs import SAMPLED_BLOCKS

SCALARS = (bool, int, float, str, types.NoneType)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
READ_ATTRIBUTES = {  # which programs read, so that they may differ from those of a new encoder
    "training", "p", "eps", "variance_epsilon", "dropout", "attention_dropout", "in_features", "out_features",
    "inplace", "layer_idx", "gradient_checkpointing"}
TRUSTED_PACKAGES = ("torch.", "transformers.", "peft.")  # whose modules compute tokens independently of each other
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
        raise Unsupported(f"{path} is a {_full_name(module)}, not the {_full_name(reference)} that packed programs "
                          "compute: merge adapters into the model, and pack it before it is quantised or parametrised")
    for name, value in vars(reference).items():
        if isinstance(value, (*SCALARS, *FUNCTIONS)) and not name.startswith("_") and name not in READ_ATTRIBUTES and (
                vars(module).get(name) != value):
            raise Unsupported(f"{path}.{name} is {vars(module).get(name)!r}, and packed programs compute {value!r}")
    if layers and tuple(reference.children()) == layers:
        for number, (name, layer) in enumerate(module.named_children()):
            _check_layer(layer, (layers[min(number, len(layers) - 1)], *layers), f"{path}.{name}")
        return
    if module._modules.keys() != reference._modules.keys():
        raise Unsupported(f"{path} has the parts {', '.join(module._modules)}, and packed programs compute "
                          f"{', '.join(reference._modules)}")
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


def check_untouched(module: torch.nn.Module, path: str) -> None:
    """Check that calling a module runs the code of its class.

    Raises:
        Unsupported: it has hooks, or a method was replaced, in it or in its class.
    """
    kind, remedy = type(module), "remove it, or call sparloom.nn.unpack(model) first"
    for hook in chain.from_iterable(getattr(module, name).values() for name in HOOKS):
        if not str(getattr(hook, "__module__", "")).startswith("transformers."):  # theirs record outputs on request
            raise Unsupported(f"{path} has a hook, {getattr(hook, '__qualname__', hook)}: {remedy}")
    replaced = [name for name in vars(module) if callable(getattr(kind, name, None))]
    replaced += [name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)
                 and value.__module__ not in (kind.__module__, None) and not name.startswith("__")]
    if replaced:
        raise Unsupported(f"{path}.{replaced[0]} was replaced: {remedy}")


def check_called(module: torch.nn.Module, path: str) -> None:
    """Check a module that is called with packed tokens, such as embeddings: it must treat each token by itself.

    Raises:
        Unsupported: it, or a part, has hooks or replaced methods, or is of a class of unknown code.
    """
    for name, part in module.named_modules(prefix=path):
        check_untouched(part, name)
        if not type(part).__module__.startswith(TRUSTED_PACKAGES):
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
        if type(part) not in ADAPTER_PARTS and not type(part).__module__.startswith("peft."):
            raise Unsupported(f"{name} is a {_full_name(part)}: packed programs compute adapters of torch.nn.Linear")


def _adapter_flags(module: Any) -> tuple[Any, ...]:
    """Return what decides which adapters add to the weight of a module, and how much."""
    return (module.training, module.disable_adapters, *module.active_adapters, *module.merged_adapters,
            *module.scaling.values(), *[getattr(each, "p", 0.0) for each in module.lora_dropout.values()])


def _full_name(module: torch.nn.Module) -> str:
    return f"{type(module).__name__} of {type(module).__module__.partition('.')[0]}"


class ModuleSnapshot:
    """The modules of an encoder as they were when they were checked.

    Args:
        root: the encoder itself; not kept alive.
        modules: all inside it whose change matters.
        programmed: those of them that programs replace, whose attributes are compared, too.
        settings: further objects with attributes, such as the configuration.
    """

    def __init__(self, root: torch.nn.Module, modules: Sequence[torch.nn.Module],
                 programmed: Iterable[torch.nn.Module], settings: Sequence[Any] = ()) -> None:
        self._modules = list(modules)
        self._classes = list(map(type, modules))
        self._class_members = [vars(kind) for kind in dict.fromkeys(self._classes)
                               if kind.__module__.startswith("transformers.")]
        self._children = [each._modules for each in (root, *modules)
                          if each._modules or isinstance(each, torch.nn.ModuleList)]
        self._attributes = list(map(vars, modules))
        hooks = [getattr(module, name) for module in modules for name in HOOKS]
        self._without_hooks = [each for each in hooks if not each]
        self._with_hooks = [each for each in hooks if each]
        self._adapters = [module for module in modules if has_adapters(module)]
        holders = [each for each in (*programmed, *settings) if type(each) is not torch.nn.Linear]
        places = [(vars(each), name) for each in holders for name, value in vars(each).items()
                  if isinstance(value, (*SCALARS, *FUNCTIONS)) and name not in ("training", "layer_idx")]
        self._holders, self._names = [place[0] for place in places], [place[1] for place in places]
        self._root_names = [name for name, value in vars(root).items()
                            if isinstance(value, (*SCALARS, *FUNCTIONS)) and name != "training"]
        self._before = self._collect(root)

    def unchanged(self, root: torch.nn.Module) -> bool:
        """Tell whether all modules, hooks, methods and attributes are the same as at first."""
        return not any(self._without_hooks) and self._collect(root) == self._before

    def _collect(self, root: torch.nn.Module) -> tuple[Any, ...]:
        own = vars(root)
        return (
            list(chain.from_iterable(map(dict.values, self._children))), list(map(type, self._modules)),
            list(map(len, self._attributes)), list(map(dict.get, self._holders, self._names)),
            [own.get(name) for name in self._root_names],
            list(chain.from_iterable([members.values() for members in self._class_members])),
            [list(each.values()) for each in self._with_hooks], list(map(_adapter_flags, self._adapters)))


class CheckedLayers:
    """The parameters of layers as they were before they were packed.

    The memory of the parameters is kept as long as this object, so that its address can be read.
    """

    def __init__(self, homes: Sequence[Mapping[str, torch.Tensor | None]]) -> None:
        self._homes, self._values = homes, list(chain.from_iterable([each.values() for each in homes]))
        self._tensors = [each for each in self._values if each is not None]
        self._counts = self._count()
        self._memory = [tensor.detach() for tensor in self._tensors]
        self._fingerprint = SpanFingerprint(self._memory, sample=SAMPLED_BLOCKS)

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

    def _count(self) -> list[Any]:
        return [(tensor._version, tensor.data_ptr(), tensor.is_contiguous()) for tensor in self._tensors]
