"""Families of synthetic patterns; their bytes are pinned in test_sparse_synthetic.py."""

import numpy as np
import pytest

from sparloom.sparse.generators import GENERATORS


def rng(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


def make(family, rows=1000, seed=0):
    return GENERATORS[family](rows, rng(seed))


@pytest.mark.parametrize("family", GENERATORS)
def test_equal_seeds_give_equal_patterns_and_others_do_not(family):
    assert make(family, 300, 1) == make(family, 300, 1)
    assert len({make(family, 300, seed).digest() for seed in range(8)}) > 1


@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 40, 900])
def test_every_size_gives_a_pattern(family, rows):
    pattern = make(family, rows)
    assert pattern.rows <= rows * 1.3 + 8
    assert pattern.nnz <= pattern.rows * pattern.cols
