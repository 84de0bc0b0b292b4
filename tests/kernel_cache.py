"""Caches with plans and rates of their own, and with the compiled kernels of everybody: none is compiled twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest


def beside_kernels(folder: Path) -> Path:
    """Link everybody's compiled kernels into a folder, which has everything else of a cache to itself."""
    from sparloom.jit import cache_folder

    kernels = cache_folder() / "jit"
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "jit").symlink_to(kernels)
    return folder


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache with plans and rates of a module's own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = beside_kernels(tmp_path_factory.mktemp("cache"))
        patch.setenv("SPARLOOM_CACHE", str(folder))
        yield folder
