"""Packages whose names are imported when they are asked for, so that importing one of them costs no other."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from sparloom.renamed import RENAMED, resolve

__all__ = ["on_demand"]


def on_demand(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the functions __getattr__ and __dir__ of a package.

    Args:
        package: its full name.
        places: public name -> module that has it.

    Raises:
        ValueError: a name is that of one of the modules, which would take its place once it is imported.
    """
    hidden = sorted(name for name in places if f"{package}.{name}" in places.values())
    if hidden:
        raise ValueError(f"{', '.join(hidden)} of {package} would be hidden by modules of the same name: rename one")

    def find(name: str) -> Any:
        if name not in places:
            if f"{package}.{name}" in RENAMED:
                return resolve(package, name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(places))}")
        return getattr(import_module(places[name]), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *places})

    return find, names
