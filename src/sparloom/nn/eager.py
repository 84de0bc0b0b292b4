"""Functions that torch.compile calls as they are."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["eager"]

P, R = ParamSpec("P"), TypeVar("R")


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function out of the graphs of torch.compile, which cannot follow compiled programs.

    As torch.compiler.disable, which would import the compiler, for seconds, where nobody compiles.
    """
    apart = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        return (apart if torch.compiler.is_compiling() else function)(*arguments, **options)

    return call
