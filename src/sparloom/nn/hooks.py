"""Modules inside a layer whose weights are read without calling them: what a call of them would do besides."""

import torch
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

__all__ = ["is_plain", "prepare_weights"]

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
