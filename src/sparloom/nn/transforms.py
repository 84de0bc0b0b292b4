"""What layers have in common: they refuse TorchScript, which cannot record compiled programs, and check sizes."""

from numbers import Integral
from typing import Any, NoReturn

import torch

__all__ = ["Layer", "check_counts", "refuse_tracing"]


class Layer(torch.nn.Module):
    """A module that runs compiled programs."""

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which asks every module in a model.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{type(self).__name__} cannot be scripted: TorchScript does not call the compiled programs "
                           "of sparloom.nn: use torch.compile, or script the modules around this one")


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


def refuse_tracing() -> None:
    """Refuse torch.jit.trace, which would keep what a program computes as a constant of the traced module.

    Raises:
        RuntimeError: it is tracing.
    """
    if torch._C._is_tracing():
        raise RuntimeError("torch.jit.trace would record the result of a layer of sparloom.nn as a constant: use "
                           "torch.compile, or trace the modules around this one")

