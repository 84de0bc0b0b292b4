"""Lazy imports: packages that import their names on first use, and errors that name the extra of a missing library."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["attach", "import_with_hint", "install_command"]

EXTRAS = {
    "cupy": "gpu", "dvc": "data", "fbgemm_gpu": "peers", "mkl": "peers", "numba": "fusion", "optuna": "scale",
    "smac": "tuners", "botorch": "tuners", "kernel_tuner": "tuners", "submitit": "scale", "sympy": "fusion",
    "tensorboard": "track", "torch": "torch", "torch_geometric": "peers", "triton": "gpu", "wandb": "track",
    **dict.fromkeys((
        "joblib", "lightgbm", "lightning", "matplotlib", "pandas", "pyarrow", "rich", "sklearn"), "experiments"),
}
"""Extras that install a library."""


def attach(
    package: str, modules: Mapping[str, Iterable[str]],
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__all__`, `__getattr__` and `__dir__` of a package that imports its names on first use.

    Args:
        package: full name.
        modules: module of the package, or full name of another package -> its public names.

    Raises:
        ValueError: a public name is also the name of a module of the package, which would replace it when imported.
    """
    homes = {name: module if module.startswith("sparloom.") else f"{package}.{module}"
             for module, names in modules.items() for name in names}
    hidden = sorted(name for name in homes if f"{package}.{name}" in homes.values())
    if hidden:
        raise ValueError(f"{', '.join(hidden)} of {package} would be hidden by modules of the same name: rename one")

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(homes))}")
        return getattr(import_with_hint(homes[name], f"{package}.{name}"), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    names.homes = homes  # for the reference pages of the documentation
    return sorted(homes), find, names


def install_command(extra: str) -> str:
    """Return what to type to install an extra, for messages: from a wheel, and in a checkout."""
    return f"pip install 'sparloom[{extra}]' (in a checkout: pip install -e \".[{extra}]\")"


def import_with_hint(module: str, wanted: str) -> ModuleType:
    """Import a module of the package.

    Args:
        wanted: what the caller asked for, for the message.

    Raises:
        ImportError: a library that it needs is not installed; the message names the extra that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library in ("", "sparloom"):
            raise
        raise ImportError(f"{wanted} needs {library}, which is not installed: "
                          f"{install_command(EXTRAS.get(library, 'experiments'))}", name=missing.name) from missing
