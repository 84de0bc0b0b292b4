"""Forms of ragged values."""


import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import batch, batches, col, head, inner, item, lengths, row, widths

from sparloom.ragged import RaggedTensor, Structure, Tensor

LENGTHS = [3, 0, 2]
tokens = Tensor("x", {batch: batches(), row: lengths(batch), inner: 2}, padding={row: 4})


@pytest.fixture
def of():
    return Structure({lengths: LENGTHS, widths: [2, 0, 1, 1, 3]}, InterpretedLibrary)


def packed_values(of, tensor):
    count = of.size(Tensor(tensor.name, tensor.axes))
    return np.arange(1, count + 1, dtype=np.float32)


def test_packed_and_cu_seqlens(of):
    packed = packed_values(of, tokens).reshape(5, 2)
    made = RaggedTensor.from_packed(tokens, of, packed)
    assert made.data.size == 8 * 2
    back, starts = made.to_packed()
    np.testing.assert_array_equal(back, packed)
    np.testing.assert_array_equal(starts, [0, 3, 3, 5])
    assert starts.dtype == np.int32


def test_padded_and_mask(of):
    packed = packed_values(of, tokens).reshape(5, 2)
    padded, mask = RaggedTensor.from_packed(tokens, of, packed).to_padded(fill=-1.0)
    assert padded.shape == (3, 3, 2)
    np.testing.assert_array_equal(mask, np.arange(3) < np.array(LENGTHS)[:, None])
    np.testing.assert_array_equal(padded[mask], packed)
    assert (padded[~mask] == -1).all()
    larger = np.pad(padded, ((0, 0), (0, 2), (0, 0)))
    np.testing.assert_array_equal(RaggedTensor.from_padded(tokens, of, larger).to_packed()[0], packed)


@pytest.mark.parametrize("tensor", [
    tokens,
    Tensor("t", {batch: batches(), row: lengths(batch), head: 2, col: lengths(batch)}, padding={row: 2}, full=(col,)),
    Tensor("t", {batch: batches(), row: lengths(batch), col: row + 1}),
    Tensor("t", {batch: batches(), row: lengths(batch), item: widths(batch, row), inner: 2}),
    Tensor("t", {row: 3, inner: 2}),
])
def test_all_forms_hold_the_same_elements(of, tensor):
    packed = packed_values(of, tensor)
    made = RaggedTensor.from_packed(tensor, of, packed)
    np.testing.assert_array_equal(made.to_packed()[0].reshape(-1), packed)
    np.testing.assert_array_equal(RaggedTensor.from_padded(tensor, of, made.to_padded()[0]).data, made.data)
    moved = made.stored_as(Tensor("t", tensor.axes, full=tuple(dim for dim, _ in tensor.axes[-1:])))
    np.testing.assert_array_equal(moved.to_packed()[0].reshape(-1), packed)


def test_slices_are_dense(of):
    tensor = Tensor("t", {batch: batches(), row: lengths(batch), head: 2, col: lengths(batch)}, padding={col: 4})
    made = RaggedTensor.from_packed(tensor, of, packed_values(of, tensor))
    np.testing.assert_array_equal(made.slice(2), np.arange(19, 27).reshape(2, 2, 2))
    np.testing.assert_array_equal(made.slice(0, 1, 0), [7, 8, 9])
    with pytest.raises(ValueError, match=r"tensor t has no slice at \(3,\): batch has 3"):
        made.slice(3)
    with pytest.raises(ValueError, match=r"tensor t has no dense slice at \(\): the extent of row varies inside"):
        made.slice()


def test_wrong_sizes_are_refused(of):
    with pytest.raises(ValueError, match="tensor x from 15 float32: its storage has 16 elements of float32"):
        RaggedTensor(tokens, of, np.zeros(15, np.float32))
    with pytest.raises(ValueError, match="tensor x from 16 float64: its storage has 16 elements of float32"):
        RaggedTensor(tokens, of, np.zeros(16))
    with pytest.raises(ValueError, match="tensor x from 9 packed elements: it has 10"):
        RaggedTensor.from_packed(tokens, of, np.zeros(9, np.float32))
    with pytest.raises(ValueError, match=r"from an array of shape \(3, 2, 2\): it needs at least \(3, 3, 2\)"):
        RaggedTensor.from_padded(tokens, of, np.zeros((3, 2, 2), np.float32))


def test_an_empty_batch():
    of = Structure({lengths: []}, InterpretedLibrary)
    made = RaggedTensor.zeros(tokens, of)
    packed, starts = made.to_packed()
    assert packed.shape == (0, 2)
    np.testing.assert_array_equal(starts, [0])
    assert made.to_padded()[0].shape == (0, 0, 2)
