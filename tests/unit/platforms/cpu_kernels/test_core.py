"""The native core is used only if it was built from the sources of the checkout."""

from types import SimpleNamespace

import pytest

import sparloom
from sparloom.platforms.cpu_kernels import core


@pytest.mark.skipif(core.CHECKOUT is None, reason="only a checkout changes")
def test_a_core_of_other_sources_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(sparloom, "_native", SimpleNamespace(SOURCES="of yesterday"), raising=False)
    assert core.native_core.__wrapped__() is None
    assert f"other sources than those of {core.CHECKOUT}" in caplog.text
    assert "pip install -e ." in caplog.text
