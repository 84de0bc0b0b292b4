"""What layers have in common: they refuse TorchScript, which cannot record compiled programs, and check attributes."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, TypeVar

import torch

__all__ = ["Layer", "check_counts", "check_flag", "check_real", "refuse_tracing", "unscriptable"]

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
