"""Machines from conf/options/platforms.yaml, and critical patterns."""

import numpy as np
import pytest
from spade_cases import machine_of

from sparloom.platforms.spade import Machine
from sparloom.sparse import Pattern


@pytest.fixture(scope="session")
def machine() -> Machine:
    """The default machine: 32 processing elements, 58.6 GB/s."""
    return machine_of("spade")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(params=["empty_rows", "one_column", "one_row", "one_element", "rectangular"])
def odd_pattern(request) -> Pattern:
    rng = np.random.default_rng(1)
    shapes = {
        "empty_rows": np.r_[np.zeros((5, 30), bool), rng.random((40, 30)) < 0.2, np.zeros((9, 30), bool)],
        "one_column": np.arange(19)[:, None] % 3 == 0,
        "one_row": np.arange(23)[None, :] % 2 == 0,
        "one_element": np.ones((1, 1), bool),
        "rectangular": rng.random((13, 2100)) < 0.02,
    }
    dense = shapes[request.param]
    return Pattern.from_coo(*np.nonzero(dense), dense.shape)
