"""Sparse and ragged tensor programs, fast on any hardware, from measured data."""

import importlib
from typing import Any

from sparloom.forks import protect_forks

__version__ = "0.1.0"

_FUNCTIONS = ("csr_attention", "prepare", "sddmm", "spmm")
_PACKAGES = ("baselines", "data", "experiments", "files", "fusion", "ir", "jit", "log", "measure", "models", "nn",
             "ops", "platforms", "ragged", "report", "solvers", "space", "sparse", "tuning")
_OLD_PACKAGES = ("dispatch", "search", "tasks")  # their names are listed in `sparloom.lazy`


def __getattr__(name: str) -> Any:
    if name in _PACKAGES or name in _OLD_PACKAGES:
        return importlib.import_module(f"sparloom.{name}")
    if name in _FUNCTIONS:  # bound here, so that later calls do not pay for the look-up
        return globals().setdefault(name, getattr(importlib.import_module("sparloom.tuning.sparse"), name))
    raise AttributeError(f"module 'sparloom' has no attribute {name!r}; functions: {', '.join(_FUNCTIONS)}; packages: "
                         f"{', '.join(_PACKAGES)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS, *_PACKAGES})


protect_forks()
