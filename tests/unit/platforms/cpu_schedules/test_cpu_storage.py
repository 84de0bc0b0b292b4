"""Packing stores every nonzero once, in every order and format, and refuses formats with too many zeros."""

import itertools

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.platforms.cpu_schedules import LEVELS, PADDING, Layout, Packer
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

ORDERS = [order for order in itertools.permutations(LEVELS)
          if order.index("io") < order.index("ii") and order.index("jo") < order.index("ji")]
FORMATS = ["".join(word) for word in itertools.product("UC", repeat=4)]


def stored(packed, layout):
    """Walk over all stored positions: (row, column) -> position."""
    places = {}

    def walk(depth, parent, at):
        if depth == len(layout.order):
            row = at["io"] << layout.row_shift | at["ii"]
            column = at["ji"] if layout.extent("jo") == 1 else at["jo"] << layout.col_shift | at["ji"]
            assert (row, column) not in places
            places[row, column] = parent
            return
        level = layout.order[depth]
        if layout.compressed[depth]:
            pos, crd = packed.arrays[f"{level}_pos"], packed.arrays[f"{level}_crd"]
            for place in range(pos[parent], pos[parent + 1]):
                walk(depth + 1, place, {**at, level: int(crd[place])})
        else:
            for coordinate in range(layout.extents[depth]):
                walk(depth + 1, parent * layout.extents[depth] + coordinate, {**at, level: coordinate})

    walk(0, 0, {})
    return places


@pytest.mark.parametrize("order", ORDERS, ids=".".join)
def test_every_nonzero_is_stored_once_at_the_position_of_its_levels(matrix, order):
    packer, pattern = Packer(matrix), matrix.pattern
    packings = 0
    for formats, rows_tile, cols_tile in itertools.product(FORMATS, (4, 32), (4, "all")):
        layout = Layout.of(pattern.shape, rows_tile=rows_tile, cols_tile=cols_tile, order=order, formats=formats)
        try:
            packed = packer.pack(layout, locate=True)
        except IllegalSchedule:
            continue
        packings += 1
        places, values = stored(packed, layout), packed.arrays["values"]
        at = [places[row, column] for row, column in zip(pattern.row_ids(), pattern.indices, strict=True)]
        np.testing.assert_array_equal(at, packed.where)
        np.testing.assert_array_equal(values[at], matrix.values)
        assert np.count_nonzero(values) == pattern.nnz
        assert sorted(places.values()) == list(range(values.size))
    assert packings > 0


def test_positions_are_counted_without_packing(hub_matrix):
    packer = Packer(hub_matrix)
    for order, formats in itertools.product(ORDERS, FORMATS):
        layout = Layout.of(hub_matrix.pattern.shape, rows_tile=8, cols_tile=16, order=order, formats=formats)
        packed, positions = packer.pack(layout, locate=False), packer.count(layout)
        assert packed.arrays["values"].size == positions[-1]
        for level, compressed, count in zip(order, layout.compressed, positions, strict=True):
            if compressed:
                assert packed.arrays[f"{level}_crd"].size == count + PADDING
                assert packed.arrays[f"{level}_pos"][-1] == count
        assert packed.where is None


def test_default_layout_is_csr(hub_matrix):
    layout = Layout.of(hub_matrix.pattern.shape, rows_tile=32, cols_tile="all", order=LEVELS, formats="UUUC")
    packed = Packer(hub_matrix).pack(layout, locate=False)
    pattern = hub_matrix.pattern
    np.testing.assert_array_equal(packed.arrays["ji_pos"][: pattern.rows + 1], pattern.indptr)
    np.testing.assert_array_equal(packed.arrays["ji_crd"][:-PADDING], pattern.indices)
    np.testing.assert_array_equal(packed.arrays["values"], hub_matrix.values)


def test_too_many_zeros_are_refused_with_the_level():
    pattern = Pattern.from_coo(np.array([0, 900]), np.array([3, 400]), (1000, 500))
    packer = Packer(SparseMatrix(pattern, np.ones(2, np.float32)))
    layout = Layout.of(pattern.shape, rows_tile=32, cols_tile="all", order=LEVELS, formats="UUUU")
    with pytest.raises(IllegalSchedule, match=r"fill: 512000 values for 2 nonzeros exceed 40 \(20 times\): compress "
                                              r"level ji or take smaller tiles"):
        packer.pack(layout, locate=False)
    fits = Layout.of(pattern.shape, rows_tile=4, cols_tile="all", order=("io", "jo", "ji", "ii"), formats="UUUC")
    assert packer.count(fits)[-1] == 2 * 4


def test_too_many_positions_of_an_inner_level_are_refused():
    nnz = 10
    pattern = Pattern.from_coo(np.arange(nnz), np.arange(nnz) * 4096, (nnz, 40960))
    packer = Packer(SparseMatrix(pattern, np.ones(nnz, np.float32)))
    layout = Layout.of(pattern.shape, rows_tile=2048, cols_tile=4, order=("io", "ii", "jo", "ji"), formats="UUUC")
    with pytest.raises(IllegalSchedule, match=r"positions of level jo for 10 nonzeros exceed \d+"):
        packer.count(layout)


def test_tiles_must_be_powers_of_two():
    with pytest.raises(IllegalSchedule, match="rows_tile 12 is not a power of two: tiles are cut by shifting"):
        Layout.of((50, 50), rows_tile=12, cols_tile="all", order=LEVELS, formats="UUUC")
