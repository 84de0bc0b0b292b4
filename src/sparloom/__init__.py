"""Sparse and ragged tensor programs, fast on any hardware, from measured data."""

import importlib
from typing import Any

from sparloom.forks import protect_forks

__version__ = "0.1.0"

_FUNCTIONS = ("csr_attention", "prepare", "sddmm", "spmm")
_PACKAGES = ("data", "dispatch", "files", "fusion", "ir", "jit", "log", "measure", "models", "nn", "ops",
             "platforms", "ragged", "report", "search", "solvers", "space", "sparse", "tasks")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"sparloom.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("sparloom.dispatch.csr"), name)
    raise AttributeError(f"module 'sparloom' has no attribute {name!r}; functions: {', '.join(_FUNCTIONS)}; packages: "
                         f"{', '.join(_PACKAGES)}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_FUNCTIONS, *_PACKAGES))


protect_forks()
