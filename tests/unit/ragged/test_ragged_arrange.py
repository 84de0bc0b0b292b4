"""Dense values in the storage of a schedule."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import batch, batches, col, inner, lengths, row

from sparloom.ragged import (
    RaggedTensor,
    Structure,
    Tensor,
    compute,
    pack_values,
    pad_storage,
    program,
    reorder_dimensions,
    split_dimension,
)

w = Tensor("w", {row: 5, col: 4, inner: 3})
READER = program("p", [compute("y", dict(w.axes), w[row, col, inner])])
VALUES = np.arange(60, dtype=np.float32).reshape(5, 4, 3)


def panels(inputs):
    return reorder_dimensions(split_dimension(inputs, "w", "row", 2), "w", ("row_block", "col", "inner", "row_within"))


@pytest.mark.parametrize("change", [
    lambda prog: prog,
    panels,
    lambda prog: split_dimension(panels(prog), "w", "inner", 3),
    lambda prog: reorder_dimensions(prog, "w", ("inner", "row")),
    lambda prog: panels(pad_storage(prog, "w", {row: 3, inner: 4})),
])
def test_values_are_packed_at_the_offsets_of_the_tensor(change):
    tensor = change(READER).tensors()["w"]
    of = Structure({lengths: [1]}, InterpretedLibrary)
    np.testing.assert_array_equal(pack_values(tensor, VALUES), RaggedTensor.from_padded(tensor, of, VALUES).data)
    turned = np.ascontiguousarray(VALUES.transpose(2, 0, 1)).transpose(1, 2, 0)
    np.testing.assert_array_equal(pack_values(tensor, turned), pack_values(tensor, VALUES))


def test_an_array_can_be_overwritten():
    tensor = panels(READER).tensors()["w"]
    out = pack_values(tensor, VALUES)
    assert pack_values(tensor, VALUES + 1, out) is out
    np.testing.assert_array_equal(out, pack_values(tensor, VALUES + 1))


def test_variable_extents_and_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"tensor w from values of shape \(4, 5, 3\): it has \(5, 4, 3\)"):
        pack_values(w, VALUES.reshape(4, 5, 3))
    ragged = Tensor("x", {batch: batches(), row: lengths(batch)})
    with pytest.raises(ValueError, match=r"tensor x has extents that vary: use RaggedTensor\.from_padded"):
        pack_values(ragged, VALUES)
