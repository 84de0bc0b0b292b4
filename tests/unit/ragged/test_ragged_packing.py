"""Dense values in the storage of a schedule, as NumPy would copy them."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import batch, batches, lengths

from sparloom import ragged
from sparloom.ragged.layers import layer
from sparloom.ragged.schedule.operations import pad_storage, reorder_dimensions, split_dimension

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

row, col, more = ragged.dims("row col more")


def reader(rows: int, cols: int) -> ragged.Program:
    w = ragged.Tensor("w", {row: rows, col: cols, more: 3})
    return ragged.program("p", [ragged.compute("y", {row: rows, col: cols, more: 3}, w[row, col, more])])


def in_panels(prog: ragged.Program, depth: int, panel: int) -> ragged.Program:
    """Store w[row, col, more] in panels of columns, in blocks of rows."""
    prog = split_dimension(split_dimension(prog, "w", "row", depth), "w", "col", panel)
    return reorder_dimensions(prog, "w", ("more", "row_block", "col_block", "row_within", "col_within"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16, np.int8])
@pytest.mark.parametrize(("rows", "cols", "depth", "panel"), [(96, 70, 32, 32), (61, 33, 20, 16), (1, 90, 1, 32),
                                                              (200, 1, 64, 1), (130, 130, 130, 130)])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_values_are_copied_in_the_order_of_storage(monkeypatch, dtype, rows, cols, depth, panel, order) -> None:
    tensor, rng = in_panels(reader(rows, cols), depth, panel).tensors()["w"], np.random.default_rng(0)
    memory = rng.integers(0, 100, [(rows, cols, 3)[each] for each in order]).astype(dtype)
    values = memory.transpose(np.argsort(order))
    found = []
    for least in (0, 1 << 40):  # by the copy of our own, and by NumPy's
        monkeypatch.setattr(layer, "COPIED_BY_NUMPY", least)
        size = 3 * -(-rows // depth) * depth * -(-cols // panel) * panel
        out = np.full(size, 7, dtype)
        assert ragged.pack_values(tensor, values, out) is out
        found.append(out)
    np.testing.assert_array_equal(*found)
    blocks = found[0].reshape(3, -(-rows // depth), -(-cols // panel), depth, panel)
    whole = blocks.transpose(1, 3, 2, 4, 0).reshape(-1, blocks.shape[2] * panel, 3)
    np.testing.assert_array_equal(whole[:rows, :cols], values)
    assert not whole[rows:].any()
    assert not whole[:, cols:].any()


@pytest.mark.parametrize("change", [
    lambda prog: prog, lambda prog: in_panels(prog, 2, 3), lambda prog: reorder_dimensions(prog, "w", ("more", "row")),
    lambda prog: in_panels(pad_storage(prog, "w", {row: 3, more: 4}), 2, 3)])
def test_values_are_packed_at_the_offsets_of_the_tensor(change) -> None:
    tensor, values = change(reader(5, 4)).tensors()["w"], np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    of = ragged.Structure({lengths: [1]}, InterpretedLibrary)
    np.testing.assert_array_equal(ragged.pack_values(tensor, values),
                                  ragged.RaggedTensor.from_padded(tensor, of, values).data)


def test_copies_of_slices_and_reversed_arrays() -> None:
    spaced = np.zeros(30000, [("first", "i1"), ("value", np.float32)])["value"].reshape(100, 300)
    spaced[:] = np.arange(30000).reshape(100, 300)
    values = np.arange(4 * 80 * 70 * 2, dtype=np.float32).reshape(4, 80, 70, 2)[1:, ::2, ::-1, 0]
    for each in (values, values.transpose(2, 0, 1), np.broadcast_to(values[:, :1], values.shape),
                 spaced, spaced.T):
        out = np.empty(each.shape, np.float32)
        layer._copy(each, out)
        np.testing.assert_array_equal(out, each)


def test_variable_extents_and_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tensor w from values of shape \(4, 5, 3\): it has \(5, 4, 3\)"):
        ragged.pack_values(reader(5, 4).tensors()["w"], np.zeros((4, 5, 3), np.float32))
    with pytest.raises(ValueError, match=r"tensor x has extents that vary: use RaggedTensor\.from_padded"):
        ragged.pack_values(ragged.Tensor("x", {batch: batches(), row: lengths(batch)}), np.zeros(3, np.float32))
