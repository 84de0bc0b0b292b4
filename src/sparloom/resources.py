"""Files that come with the package: kernel sources and configurations, in an installed wheel or in a checkout."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["CHECKOUT", "FOLDERS", "PACKAGE"]

PACKAGE = Path(__file__).resolve().parent
"""Folder of the package."""
_TOP = PACKAGE.parents[1]
CHECKOUT: Path | None = _TOP if PACKAGE.parent.name == "src" and (_TOP / "kernels").is_dir() else None
"""The checkout that this package is imported from; None for a package installed from a wheel."""
FOLDERS: Mapping[str, Path] = {
    name: PACKAGE / f"_{name}" if CHECKOUT is None else CHECKOUT / name for name in ("conf", "kernels")}
"""Folders of configurations and kernel sources: beside the modules in a wheel, at the top of a checkout."""
