"""Fixtures of the data tests."""

from collections.abc import Callable
from typing import Any

import pytest

from sparloom.data import Sample


@pytest.fixture
def sample() -> Callable[..., Sample]:
    """Makes a complete row with some fields changed."""

    def make(**changes: Any) -> Sample:
        fields = {
            "op": "spmm", "platform": "cpu", "preset": "", "matrix": "g/a", "width": 256, "config": "knob=1",
            "round": 0, "seconds": (2e-3, 1e-3), "cpu_seconds": (4e-3, 2e-3), "kind": "wall", "failure": None,
            "stolen": False, "machine": "a machine", "commit": "abc", "started": "2025-01-02T03:04:05Z",
        }
        return Sample(**{**fields, **changes})

    return make
