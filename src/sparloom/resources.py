"""What is installed: kernel sources and configurations, in a wheel or in a checkout, and versions of packages."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["CHECKOUT", "FOLDERS", "PACKAGE", "package_versions"]

PACKAGE = Path(__file__).resolve().parent
"""Folder of the package."""
_TOP = PACKAGE.parents[1]
CHECKOUT: Path | None = _TOP if PACKAGE.parent.name == "src" and (_TOP / "kernels").is_dir() else None
"""The checkout that this package is imported from; None for a package installed from a wheel."""
FOLDERS: Mapping[str, Path] = {
    name: PACKAGE / f"_{name}" if CHECKOUT is None else CHECKOUT / name for name in ("conf", "kernels")}
"""Folders of configurations and kernel sources: beside the modules in a wheel, at the top of a checkout."""


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of these packages that are installed."""
    from importlib import metadata  # takes 30 ms

    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
