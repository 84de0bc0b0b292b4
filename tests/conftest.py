"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

pytest_plugins = ["compiler_plugin", "golden_plugin"]


@pytest.fixture(scope="session")
def mirror() -> str:
    """Address of a SuiteSparse-layout mirror with real matrices, or a skip that says how to give one."""
    given = os.environ.get("SPARLOOM_MIRROR")
    if given:
        return given
    beside = Path(__file__).resolve().parents[2] / "shared" / "matrices"
    if beside.is_dir():
        return str(beside)
    pytest.skip("no real matrices: set SPARLOOM_MIRROR to a folder or URL in SuiteSparse layout")
