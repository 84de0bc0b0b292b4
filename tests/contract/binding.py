"""Bind every _target_ of composed or raw configuration against the signature it names."""

import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import torch  # noqa: F401  (conf names torch.optim)


def locate(target: str) -> Any:
    """Import the object that a _target_ names."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ImportError:
        holder, _, inner = module.rpartition(".")
        return getattr(getattr(import_module(holder), inner), name)


def faults(tree: Any, place: str = "") -> Iterator[str]:
    """List all arguments in a tree that its _target_ would reject, with their paths, parts first."""
    if isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from faults(item, f"{place}[{index}]")
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        yield from faults(value, f"{place}.{key}" if place else str(key))
    if "_target_" in tree:
        yield from (f"{place or 'top'}: {fault}" for fault in _target_faults(tree))


def _target_faults(tree: Mapping[str, Any]) -> Iterator[str]:
    target = tree["_target_"]
    try:
        found = locate(target)
    except (ImportError, AttributeError) as error:
        yield f"{target} cannot be imported ({error})"
        return
    given = {key: value for key, value in tree.items() if not str(key).startswith("_")}
    signature = inspect.signature(found)
    bind = signature.bind_partial if tree.get("_partial_") else signature.bind
    try:
        bind(**given)
    except TypeError as error:
        yield f"{target}: {error}; it takes {signature}"
