"""Errors of public functions that were given another type than they take."""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["explain_type_errors"]

P, R = ParamSpec("P"), TypeVar("R")


def explain_type_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Name the argument of another type where a function fails because of it; nothing is checked in calls that succeed.

    Raises:
        TypeError: an argument is of another type than its annotation says; the message says which.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return function(*arguments, **options)
        except (AttributeError, TypeError) as error:
            told = _mistaken(function, arguments, options)
            if told is None:
                raise
            raise TypeError(told) from error

    return call


def _mistaken(function: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str | None:
    """Describe the first argument that is of another type than its parameter; None: there is none."""
    try:
        signature, hints = inspect.signature(function), get_type_hints(function)
        bound = signature.bind(*arguments, **options).arguments
    except (NameError, TypeError):  # types for type checkers only, or other parameters
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
    """Tell whether a value may be of a type, as far as its class tells."""
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
