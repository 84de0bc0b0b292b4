"""Caches with separate plans and rates but shared compiled kernels, so that no kernel is compiled twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest


def beside_kernels(folder: Path) -> Path:
    """Link the shared compiled kernels into a folder; everything else in this cache is separate."""
    from sparloom.jit import cache_folder

    kernels = cache_folder() / "jit"
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "jit").symlink_to(kernels)
    return folder


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a cache with separate plans and rates for a module."""
    with pytest.MonkeyPatch.context() as patch:
        folder = beside_kernels(tmp_path_factory.mktemp("cache"))
        patch.setenv("SPARLOOM_CACHE", str(folder))
        yield folder
