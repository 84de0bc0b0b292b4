"""The state of the code that makes data."""

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from sparloom.checkout import changes, revision

__all__ = ["code", "commit", "versions"]

PACKAGES = ("numpy", "scipy", "torch", "torch-geometric", "mkl", "pymetis", "cupy-cuda13x", "triton")
"""What benchmarks run or compare with."""


@cache
def commit() -> str:
    """Commit of the checkout this package is in, "+" appended when tracked files differ; "unknown" outside of one."""
    found = revision(Path(__file__).parent)
    return "unknown" if found is None else found.commit[:12] + ("+" if found.dirty else "")


@cache
def code() -> str:
    """Commit, and a digest of what differs from it in the package and in kernels/, "" where nothing does."""
    return commit().rstrip("+") + changes(Path(__file__).parent, "src", "kernels")


@cache
def versions() -> Mapping[str, str]:
    """Versions of the packages that benchmarks run, as far as they are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
