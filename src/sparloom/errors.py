"""Exceptions to which a caller can react; other errors are plain ValueErrors or TypeErrors.

`explain_type_errors` makes TypeErrors of public functions name the argument of the wrong type.
"""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = [
    "CompileError", "IllegalSchedule", "MissingArtifact", "NoCompiler", "NotDecided", "SchemaError", "SparloomError",
    "Unfusable", "Unsupported", "explain_type_errors",
]

P, R = ParamSpec("P"), TypeVar("R")


class SparloomError(Exception):
    """Base class: the command line shows the message without a stack trace."""


class Unsupported(SparloomError, NotImplementedError):
    """A platform or a program cannot compute this operation, configuration or model (torch: the same)."""


class Unfusable(Unsupported):
    """Tile fusion cannot compile a function; the message names file, line and construct."""


class IllegalSchedule(SparloomError, ValueError):
    """A configuration violates a dependence or a limit of its space; the message says which."""


class NotDecided(SparloomError):
    """A decision should be replayed, but none is cached for these operands on this machine."""


class CompileError(SparloomError):
    """A compiler rejected a source text.

    Args:
        source: the source text.
        log: output of the compiler.
    """

    def __init__(self, message: str, *, source: str, log: str) -> None:
        super().__init__(message)
        self.source = source
        self.log = log

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), source=self.source, log=self.log), self.args


class NoCompiler(CompileError):
    """There is no compiler for a source text; the message names packages that install one."""


class SchemaError(SparloomError):
    """A table or checkpoint does not have the schema, space or version that its reader expects."""


class MissingArtifact(SparloomError):
    """An artifact that a task needs has not been made yet; the text of the error names the command that makes it.

    Args:
        message: what is missing.
        experiment: name of the experiment that makes it.
        overrides: further overrides for that experiment, such as "op=sddmm".
    """

    def __init__(self, message: str, *, experiment: str, overrides: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.experiment, self.overrides = message, experiment, overrides

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), experiment=self.experiment, overrides=self.overrides), self.args

    def __str__(self) -> str:
        return f"{self.message}: run `python run.py {' '.join((f'experiment={self.experiment}', *self.overrides))}`"


def explain_type_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that fails name the argument of the wrong type; calls that succeed are not checked.

    Raises:
        TypeError: an argument does not have the type of its annotation; names the argument and both types.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return function(*arguments, **options)
        except (AttributeError, TypeError) as error:
            message = _mistaken(function, arguments, options)
            if message is None:
                raise
            raise TypeError(message) from error

    return call


def _mistaken(function: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str | None:
    """Describe the first argument of the wrong type; None if there is none."""
    try:
        signature, hints = inspect.signature(function), get_type_hints(function)
        bound = signature.bind(*arguments, **options).arguments
    except (NameError, TypeError):  # types for type checkers only, or wrong parameters
        return None
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        values = value if kind is inspect.Parameter.VAR_POSITIONAL else (
            value.values() if kind is inspect.Parameter.VAR_KEYWORD else (value,))
        for each in values:
            if name in hints and not _fits(each, hints[name]):
                wanted = function.__annotations__[name]
                wanted = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", str(wanted))
                return f"{function.__name__}: {name} is of type {type(each).__name__}: give {wanted}"
    return None


def _fits(value: Any, hint: Any) -> bool:
    """Check whether a value may have a type, judging by its class."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint is None:
        return value is None
    if hint is float:
        return isinstance(value, (int, float))
    kind = origin if isinstance(origin, type) else hint
    if not isinstance(kind, type):
        return True
    each = get_args(hint) if isinstance(value, (list, tuple, set, dict, str)) and kind is not tuple else ()
    return isinstance(value, kind) and (len(each) != 1 or all(_fits(item, *each) for item in value))
