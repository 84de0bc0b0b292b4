"""Check before a run that values given on the command line are of the kinds that the task needs, in plain words."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from sparloom.cli.messages import UsageError
from sparloom.cli.options import at, key_of

__all__ = ["check_accelerator", "check_kinds", "check_options"]

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}
PLURALS = {int: "whole numbers, such as [0,1]", float: "numbers, such as [0.1,0.2]", str: "words, such as [a,b]"}


def check_accelerator(tree: Mapping[str, Any], read: set[str]) -> None:
    """Refuse a training on a GPU where there is none, before anything runs.

    Args:
        tree: resolved configuration.
        read: paths in the configuration that the task refers to.

    Raises:
        UsageError: names the remedy.
    """
    wanted = at(tree, "trainer.accelerator")
    if wanted not in ("gpu", "cuda") or "trainer" not in read:
        return
    import torch

    if not (torch.cuda.is_available() or (wanted == "gpu" and torch.backends.mps.is_available())):
        raise UsageError(f"trainer.accelerator={wanted}: PyTorch {torch.__version__} finds no GPU here: take "
                         "trainer=auto, the default, or a PyTorch with CUDA on a machine with a GPU")


def check_kinds(resolved: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse a value of the wrong kind, such as text where a list of numbers is needed.

    Args:
        resolved: configuration.
        overrides: of the command line.

    Raises:
        UsageError: names the option and what to give.
    """
    for text in overrides:
        path, _, name = key_of(text).rpartition(".")
        node = at(resolved, path) if path else None
        if not isinstance(node, Mapping) or "_target_" not in node or name not in node:
            continue
        kind = _parameters(_called(node)).get(name)
        if kind is not None and not _fits(node[name], kind):
            raise UsageError(f"{text}: give {_words(kind)}")


def check_options(tree: Mapping[str, Any], resolved: Mapping[str, Any], overrides: Sequence[str], conf: Path) -> None:
    """Refuse an option file that makes an object of another class than the task needs, such as trees for a network.

    Args:
        tree: configuration with unresolved interpolations.
        conf: folder of option files.

    Raises:
        UsageError: names the option and those that fit.
    """
    for text in overrides:
        group, _, package = key_of(text).partition("@")
        package = package or group
        if not (conf / group).is_dir() or not isinstance(resolved.get(package), Mapping):
            continue
        made = _target(resolved[package])
        for path, kind in _takers(tree.get("task"), f"${{{package}}}", "task"):
            if inspect.isclass(made) and not issubclass(made, kind):
                options = {file.stem: _target_of_file(file) for file in sorted((conf / group).glob("*.yaml"))}
                fitting = [name for name, one in options.items() if inspect.isclass(one) and issubclass(one, kind)]
                raise UsageError(f"{text} makes {made.__name__}, but this experiment needs {kind.__name__} ({path}): "
                                 f"choose {key_of(text)}={' or '.join(fitting) or '<another>'}")


def _takers(node: Any, reference: str, path: str) -> Iterator[tuple[str, type]]:
    """Yield the parameters that take an option, with the classes that they need."""
    if isinstance(node, Mapping):
        kinds = _parameters(_called(node)) if "_target_" in node else {}
        for name, value in node.items():
            kind = kinds.get(name)
            if value == reference and inspect.isclass(kind) and not getattr(kind, "_is_protocol", False):
                yield f"{path}.{name}", kind
            else:
                yield from _takers(value, reference, f"{path}.{name}")


def _target(node: Mapping[str, Any]) -> Any:
    """Return the class that a node makes an object of; None for a function, or an object that is made later."""
    found = None if node.get("_partial_") else _called(node)
    return found if inspect.isclass(found) else None


def _called(node: Mapping[str, Any]) -> Any:
    """Return the class or function of this package that a node names, or None."""
    module, _, name = str(node.get("_target_", "")).rpartition(".")
    if not module.startswith("sparloom"):
        return None
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return None  # the run reports it


def _target_of_file(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    named = re.search(r"^_target_: (\S+)", text, re.MULTILINE)
    base = re.search(r"^defaults:\n  - (\w+)$", text, re.MULTILINE)
    if named is None and base is not None:
        return _target_of_file(file.with_name(f"{base[1]}.yaml"))
    return _target({"_target_": named[1]}) if named else None


def _parameters(target: Any) -> dict[str, Any]:
    """Return the annotations of the parameters of a class or function, without those that cannot be resolved here."""
    if target is None:
        return {}
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, str):
            try:
                kind = eval(kind, vars(import_module(target.__module__)))
            except (NameError, AttributeError, TypeError):
                continue  # imported for type checkers only
        found[name] = kind
    return found


def _fits(value: Any, kind: Any) -> bool:
    """Tell whether a value of YAML may be of a kind; kinds that are not plain always fit."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return True  # the task says which values there are
    if origin in (Sequence, list, tuple):
        element = next((part for part in parts if part is not Ellipsis), None)
        return isinstance(value, list) and (origin is tuple or all(_fits(each, element) for each in value))
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is NoneType:
        return value is None
    return not (kind is str and isinstance(value, list | Mapping))


def _words(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if origin in (Sequence, list, tuple):
        element = next((part for part in parts if part is not Ellipsis), None)
        return f"a list of {PLURALS.get(element, 'values, such as [a,b]')}"
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))
