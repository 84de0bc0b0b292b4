"""Small matrices with critical patterns: empty rows, a hub row, one column, no nonzeros."""

import numpy as np
import pytest

from sparloom.sparse import Pattern, SparseMatrix


def matrix_of(dense: np.ndarray) -> SparseMatrix:
    rows, cols = np.nonzero(dense)
    pattern = Pattern.from_coo(rows, cols, dense.shape)
    values = np.random.default_rng(1).uniform(0.5, 1.0, pattern.nnz).astype(np.float32)
    return SparseMatrix(pattern, values)


def hub() -> np.ndarray:
    dense = np.random.default_rng(0).random((45, 41)) < 0.25
    dense[7], dense[12], dense[44], dense[:, 5] = True, False, False, False
    return dense


SHAPES = {
    "hub_row": hub(),
    "one_column": np.arange(19)[:, None] % 3 == 0,
    "one_row": np.arange(23)[None, :] % 2 == 0,
    "one_element": np.ones((1, 1), bool),
    "no_nonzeros": np.zeros((9, 6), bool),
    "no_rows": np.zeros((0, 4), bool),
    "full": np.ones((17, 18), bool),
}


@pytest.fixture(params=SHAPES, ids=str)
def matrix(request: pytest.FixtureRequest) -> SparseMatrix:
    return matrix_of(SHAPES[request.param])


@pytest.fixture
def hub_matrix() -> SparseMatrix:
    return matrix_of(SHAPES["hub_row"])
