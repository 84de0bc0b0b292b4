"""Sparse and ragged tensor programs made fast from measured data."""

from typing import Any

from sparloom.forks import protect_forks
from sparloom.lazy import import_with_hint

__version__ = "0.2.0"

_FUNCTIONS = {"Campaign": "tuning", "SparseArray": "arrays", "as_linear_operator": "arrays",
              "csr_attention": "tuning.sparse", "polynomial": "solvers", "powers": "solvers",
              "prepare": "tuning.sparse", "prepare_powers": "solvers", "sddmm": "tuning.sparse",
              "spmm": "tuning.sparse", "tune": "tuning.sparse", "warmup": "jit"}
_PACKAGES = ("arrays", "baselines", "data", "experiments", "files", "fusion", "ir", "jit", "log", "measure", "models",
             "nn", "ops", "platforms", "ragged", "report", "solvers", "space", "sparse", "tuning")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_with_hint(f"sparloom.{name}", f"sparloom.{name}")
    if name in _FUNCTIONS:  # bound here, so that later calls do not pay for the look-up
        package = import_with_hint(f"sparloom.{_FUNCTIONS[name]}", f"sparloom.{name}")
        return globals().setdefault(name, getattr(package, name))
    raise AttributeError(f"module 'sparloom' has no attribute {name!r}; functions: {', '.join(_FUNCTIONS)}; packages: "
                         f"{', '.join(_PACKAGES)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS, *_PACKAGES})


protect_forks()
