"""Products by a transposed pattern: values are permuted only when they change."""

import numpy as np
import pytest
import torch
from kernel_cache import beside_kernels

from sparloom.nn.pattern_cache import PreparedPattern
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc

ROWS, COLS = np.array([0, 0, 1, 2, 2]), np.array([0, 2, 1, 0, 3])
SHAPE = (3, 4)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(beside_kernels(tmp_path)))
    return PreparedPattern(Pattern.from_coo(ROWS, COLS, SHAPE), threads=1)


def dense(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros(SHAPE).index_put((torch.from_numpy(ROWS), torch.from_numpy(COLS)), values)


@pytest.fixture
def permutations(monkeypatch):
    counted = []
    select = torch.Tensor.index_select
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *inputs: counted.append(inputs) or select(*inputs))
    return counted


def test_values_that_stay_are_permuted_once(prepared, permutations):
    values, y = torch.arange(1.0, 6.0), torch.rand(3, 2)
    for _ in range(3):
        torch.testing.assert_close(prepared.spmm_transposed(values, y), dense(values).T @ y)
    assert len(permutations) == 1


def test_values_written_in_place_or_replaced_are_permuted_again(prepared, permutations):
    values, y = torch.arange(1.0, 6.0), torch.rand(3, 2)
    prepared.spmm_transposed(values, y)
    values.mul_(2)
    torch.testing.assert_close(prepared.spmm_transposed(values, y), dense(values).T @ y)
    other = values + 1
    torch.testing.assert_close(prepared.spmm_transposed(other, y), dense(other).T @ y)
    assert len(permutations) == 3
