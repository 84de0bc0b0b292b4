"""The anchors: their sizes, and what fuses in them."""

import numpy as np
import pytest

from sparloom.sparse import ANCHORS, AnchorCorpus, reorder

SMALL = AnchorCorpus(scale=1 / 64, reordered=True)


def test_six_anchors_come_first_and_are_for_training():
    assert [entry.name for entry in SMALL.entries()][:6] == list(ANCHORS)
    assert set(SMALL.split().values()) == {"train"}


def test_a_matrix_is_reproducible_and_matches_its_entry():
    for entry in SMALL.entries():
        matrix = SMALL.load(entry.name)
        assert matrix == SMALL.load(entry.name)
        assert (*matrix.pattern.shape, matrix.pattern.nnz) == (entry.rows, entry.cols, entry.nnz)
        assert np.abs(matrix.values).max() <= 1


@pytest.mark.parametrize(("name", "axes", "block"), [("lap2d", 2, 64), ("lap3d", 3, 16)])
def test_block_order_renumbers_the_same_grid(name, axes, block):
    plain = SMALL.load(name).pattern
    blocked = next(entry.name for entry in SMALL.entries() if entry.name == f"{name}_blk{block}")
    side = round(plain.rows ** (1 / axes))
    places = np.indices((side,) * axes).reshape(axes, -1)
    order = sorted(range(plain.rows), key=lambda v: (*(places[:, v] // block), *places[:, v]))
    assert reorder(plain, np.array(order), np.array(order)) == SMALL.load(blocked).pattern


def test_a_band_reaches_200_columns():
    pattern = SMALL.load("band").pattern
    assert np.abs(pattern.row_ids().astype(int) - pattern.indices).max() == 200
