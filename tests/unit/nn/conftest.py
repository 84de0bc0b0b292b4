"""Fixtures of tests of sparloom.nn."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kernel_cache import beside_kernels

from sparloom.nn import core_calls


@pytest.fixture(scope="session")
def sparse_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for rates and plans of these tests, with the shared compiled kernels."""
    return beside_kernels(tmp_path_factory.mktemp("sparse"))


@pytest.fixture(scope="module")
def sparse_cache(sparse_folder: Path) -> Iterator[Path]:
    """Set a cache separate from the user's, for modules that request it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(sparse_folder))
        yield sparse_folder


@pytest.fixture(params=["core", "torch"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aggregate by the native core, and as where it cannot be used."""
    if request.param == "torch":
        monkeypatch.setattr(core_calls, "_core", lambda: None)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute with one thread: those of small products wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
