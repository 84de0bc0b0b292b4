"""Orders: what reorder does, and that the locality order finds a lost order again."""

import numpy as np
import pytest

from sparloom.sparse import Pattern, SyntheticCorpus, locality_order, reorder, statistics

EXAMPLE = Pattern.from_coo(np.array([0, 0, 1, 2]), np.array([0, 3, 1, 2]), (3, 4))


def synthetic(family, rows):
    return SyntheticCorpus([rows], 1, 0, [family]).load(f"{family}/n{rows}_v0_s0").pattern


def test_reorder_permutes_rows_and_columns():
    rows_perm, cols_perm = np.array([2, 0, 1]), np.array([3, 1, 0, 2])
    expected = EXAMPLE.to_scipy().toarray()[rows_perm][:, cols_perm]
    assert reorder(EXAMPLE, rows_perm, cols_perm).to_scipy().toarray().tolist() == expected.tolist()


@pytest.mark.parametrize("perm", [[0, 1], [0, 1, 1], [1, 2, 3], [[0, 1, 2]]])
def test_reorder_refuses_arguments_that_are_not_permutations(perm):
    with pytest.raises(ValueError, match=r"rows_perm of shape .* is not a permutation of 0 to 2"):
        reorder(EXAMPLE, np.array(perm), np.arange(4))
    with pytest.raises(ValueError, match="cols_perm of shape"):
        reorder(EXAMPLE, np.arange(3), np.arange(3))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1), (4, 4), (1, 5), (5, 1)])
def test_orders_without_nonzeros(shape):
    empty = Pattern(shape, np.zeros(shape[0] + 1, np.int64), np.zeros(0, np.int32))
    assert reorder(empty, *locality_order(empty)) == empty


def test_square_order_restores_a_scrambled_band():
    scrambled = synthetic("scrambled_band", 1000)
    restored = reorder(scrambled, *locality_order(scrambled))
    before, after = (statistics(pattern)["bandwidth_mean"] for pattern in (scrambled, restored))
    assert before > 0.2
    assert after < 0.01


def test_square_order_permutes_rows_and_columns_equally():
    rows_perm, cols_perm = locality_order(synthetic("uniform", 200))
    assert rows_perm.tolist() == cols_perm.tolist()
    assert rows_perm is not cols_perm


def test_rectangular_order_puts_full_columns_and_rows_first():
    rows = np.array([0, 1, 1, 1, 1, 2, 2])
    cols = np.array([4, 1, 2, 3, 4, 2, 4])
    rows_perm, cols_perm = locality_order(Pattern.from_coo(rows, cols, (4, 6)))
    assert cols_perm.tolist() == [2, 4, 1, 3, 0, 5]  # degrees 2 and 3, then 1, then 0
    assert rows_perm.tolist() == [1, 2, 0, 3]
