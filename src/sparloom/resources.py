"""Files that come with the package: kernel sources and configurations, in an installed wheel or in a checkout."""

from pathlib import Path

__all__ = ["PACKAGE", "checkout", "resource_folder"]

PACKAGE = Path(__file__).resolve().parent
"""Folder of the package."""


def checkout() -> Path | None:
    """Return the checkout that this package is imported from; None for a package installed from a wheel."""
    root = PACKAGE.parents[1]
    return root if PACKAGE.parent.name == "src" and (root / "kernels").is_dir() else None


def resource_folder(name: str) -> Path:
    """Return a folder of files that the package reads: "kernels" or "conf".

    A wheel has it beside the modules (`sparloom/_kernels`), a checkout at its top.

    Raises:
        FileNotFoundError: the installation lacks the folder.
    """
    root = checkout()
    folder = PACKAGE / f"_{name}" if root is None else root / name
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: this copy of sparloom is incomplete; install a wheel, or run "
                                "`pip install -e .` in a checkout")
    return folder
