"""Refuse TorchScript, which cannot record compiled programs."""

from typing import NoReturn

import torch

__all__ = ["Layer", "refuse_tracing"]


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

