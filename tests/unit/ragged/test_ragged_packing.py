"""Storage of weights: values in another order of dimensions, as NumPy would copy them."""

import numpy as np
import pytest

from sparloom import ragged
from sparloom.ragged.layers import layer
from sparloom.ragged.schedule.operations import reorder_dimensions, split_dimension

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

row, col, more = ragged.dims("row col more")


def stored(rows: int, cols: int, depth: int, panel: int) -> ragged.Tensor:
    """Store w[row, col, more] in panels of columns, in blocks of rows."""
    w = ragged.Tensor("w", {row: rows, col: cols, more: 3})
    prog = ragged.program("p", [ragged.compute("y", {row: rows, col: cols, more: 3}, w[row, col, more])])
    prog = split_dimension(split_dimension(prog, "w", "row", depth), "w", "col", panel)
    prog = reorder_dimensions(prog, "w", ("more", "row_block", "col_block", "row_within", "col_within"))
    return prog.tensors()["w"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16, np.int8])
@pytest.mark.parametrize(("rows", "cols", "depth", "panel"), [(96, 70, 32, 32), (61, 33, 20, 16), (1, 90, 1, 32),
                                                              (200, 1, 64, 1), (130, 130, 130, 130)])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_values_are_copied_in_the_order_of_storage(monkeypatch, dtype, rows, cols, depth, panel, order) -> None:
    tensor, rng = stored(rows, cols, depth, panel), np.random.default_rng(0)
    memory = rng.integers(0, 100, [(rows, cols, 3)[each] for each in order]).astype(dtype)
    values = memory.transpose(np.argsort(order))
    found = []
    for least in (0, 1 << 40):  # by the copy of our own, and by NumPy's
        monkeypatch.setattr(layer, "COPIED_BY_NUMPY", least)
        size = 3 * -(-rows // depth) * depth * -(-cols // panel) * panel
        found.append(ragged.pack_values(tensor, values, np.full(size, 7, dtype)))
    np.testing.assert_array_equal(*found)
    blocks = found[0].reshape(3, -(-rows // depth), -(-cols // panel), depth, panel)
    whole = blocks.transpose(1, 3, 2, 4, 0).reshape(-1, blocks.shape[2] * panel, 3)
    np.testing.assert_array_equal(whole[:rows, :cols], values)
    assert not whole[rows:].any()
    assert not whole[:, cols:].any()


def test_copies_of_slices_and_reversed_arrays() -> None:
    spaced = np.zeros(30000, [("first", "i1"), ("value", np.float32)])["value"].reshape(100, 300)
    spaced[:] = np.arange(30000).reshape(100, 300)
    values = np.arange(4 * 80 * 70 * 2, dtype=np.float32).reshape(4, 80, 70, 2)[1:, ::2, ::-1, 0]
    for each in (values, values.transpose(2, 0, 1), np.broadcast_to(values[:, :1], values.shape),
                 spaced, spaced.T):
        out = np.empty(each.shape, np.float32)
        layer._copy(each, out)
        np.testing.assert_array_equal(out, each)
