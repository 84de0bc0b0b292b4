"""Sparse and ragged tensor programs, fast on any hardware, from measured data."""

import importlib
from types import ModuleType

__version__ = "0.1.0"

_PACKAGES = ("data", "dispatch", "files", "fusion", "ir", "jit", "log", "measure", "models", "nn", "ops",
             "platforms", "ragged", "report", "search", "solvers", "space", "sparse", "tasks")


def __getattr__(name: str) -> ModuleType:
    if name in _PACKAGES:
        return importlib.import_module(f"sparloom.{name}")
    raise AttributeError(f"module 'sparloom' has no attribute {name!r}; packages: {', '.join(_PACKAGES)}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_PACKAGES))
