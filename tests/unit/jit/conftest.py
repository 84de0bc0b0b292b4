"""A cache of its own for every test."""

import pytest

from sparloom.jit import compile_c


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPARLOOM_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def compile_once(tmp_path_factory):
    """compile_c with a cache that the tests of a file share."""
    folder = tmp_path_factory.mktemp("cache")

    def compile_shared(kernels):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARLOOM_CACHE", str(folder))
            return compile_c(kernels)

    return compile_shared
