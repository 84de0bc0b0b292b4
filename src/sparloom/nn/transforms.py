"""Ways in which torch runs a layer without calling it; those that programs cannot follow are refused."""

from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

__all__ = ["Layer", "refuse_forward_mode", "refuse_tracing", "refuse_transforms"]


class Layer(torch.nn.Module):
    """A module that runs compiled programs."""

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which asks every module in a model.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{type(self).__name__} cannot be scripted: TorchScript does not call the compiled programs "
                           "of sparloom.nn: use torch.compile, or script the modules around this one")


def refuse_tracing() -> None:
    """Refuse torch.jit.trace, which would keep what a program computes as a constant of the traced module.

    Raises:
        RuntimeError: it is tracing.
    """
    if torch._C._is_tracing():
        raise RuntimeError("torch.jit.trace would record the result of a layer of sparloom.nn as a constant: use "
                           "torch.compile, or trace the modules around this one")


def refuse_transforms(x: torch.Tensor) -> None:
    """Refuse torch.func's transforms and derivatives in forward mode, which do not see into programs.

    Args:
        x: what the layer is called with.

    Raises:
        RuntimeError: vmap, grad, jvp or another one is at work.
        NotImplementedError: x carries a tangent.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise RuntimeError("transforms of torch.func (vmap, grad, jvp) do not see into this layer: use "
                           "torch.autograd.grad, and one call for each element of a batch")
    refuse_forward_mode("this layer", (x,))


def refuse_forward_mode(name: str, given: tuple[Any, ...]) -> None:
    """Refuse tensors that carry a tangent, which kernels would lose.

    Raises:
        NotImplementedError: one does.
    """
    if forward_ad._current_level < 0:
        return
    if any(isinstance(each, torch.Tensor) and forward_ad.unpack_dual(each).tangent is not None for each in given):
        raise NotImplementedError(f"{name} has no derivatives in forward mode: take those in backward mode, by "
                                  "torch.autograd.grad")
