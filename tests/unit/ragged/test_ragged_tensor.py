"""Forms of ragged values."""

import re

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


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))


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
    padded, mask = made.to_padded()
    np.testing.assert_array_equal(RaggedTensor.from_padded(tensor, of, padded, mask=mask).data, made.data)
    again = RaggedTensor.from_packed(tensor, of, packed, cu_seqlens=made.to_packed()[1])
    np.testing.assert_array_equal(again.data, made.data)
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


def test_a_mask_has_the_elements_of_the_structure(of):
    padded, mask = RaggedTensor.from_packed(tokens, of, packed_values(of, tokens)).to_padded()
    larger, wide = np.pad(padded, ((0, 0), (0, 2), (0, 0))), np.pad(mask, ((0, 0), (0, 2)))
    np.testing.assert_array_equal(RaggedTensor.from_padded(tokens, of, larger, mask=wide).to_padded()[0], padded)
    for other, message in (([3, 1, 2], "True at (1, 0): the structure has no element there"),
                           ([3, 0, 1], "False at (2, 1): the structure has an element there")):
        with pytest.raises(ValueError, match=re.escape(f"tensor x from a mask that is {message}")):
            RaggedTensor.from_padded(tokens, of, padded, mask=np.arange(3) < np.array(other)[:, None])


def test_a_mask_with_holes_is_refused(of):
    padded, mask = RaggedTensor.zeros(tokens, of).to_padded()
    mask[2] = [True, False, True]
    with pytest.raises(ValueError, match=r"tensor x from a mask whose slice \(2,\) has element 2,"
                                         r" but not 1: the elements of a slice"):
        RaggedTensor.from_padded(tokens, of, padded, mask=mask)
    with pytest.raises(ValueError, match=r"a mask of int64 and shape \(3, 3\): give bool of shape \(3, 3\), true"):
        RaggedTensor.from_padded(tokens, of, padded, mask=mask.astype(np.int64))
    with pytest.raises(ValueError, match=r"of bool and shape \(3, 2\): give bool of shape \(3, 3\)"):
        RaggedTensor.from_padded(tokens, of, padded, mask=mask[:, :2])
    with pytest.raises(ValueError, match=r"tensor x from an array of shape \(3, 3\): it has 3 dimensions"):
        RaggedTensor.from_padded(tokens, of, padded[..., 0], mask=mask)


def test_cu_seqlens_are_those_of_the_structure(of):
    packed = packed_values(of, tokens).reshape(5, 2)
    made = RaggedTensor.from_packed(tokens, of, packed, cu_seqlens=[0, 3, 3, 5])
    np.testing.assert_array_equal(made.to_packed()[0], packed)
    for other, message in (([0, 3, 5, 5], "cu_seqlens whose entry 2 is 5: the structure has 3 there"),
                           ([0, 3, 5], "3 cu_seqlens: the structure has 4")):
        with pytest.raises(ValueError, match=f"tensor x from {message}"):
            RaggedTensor.from_packed(tokens, of, packed, cu_seqlens=other)


@pytest.mark.parametrize(("inputs", "message"), [
    ([1, 3], "that start with 1: they start with 0"),
    ([0, 3, 2, 5], "whose entry 2 is 2, after 3: they must not decrease"),
    (np.array([0, 3, 2, 5], dtype=np.uint64), "whose entry 2 is 2, after 3: they must not decrease"),
    ([0.0, 5.0], "of float64 and shape (2,): give a vector of integers, one more than there are slices"),
    (np.zeros(0, np.int32), "of int32 and shape (0,): give a vector of integers"),
    ([[0, 5]], "of int64 and shape (1, 2): give a vector of integers"),
])
def test_cu_seqlens_are_checked(inputs, message):
    with pytest.raises(ValueError, match=re.escape(f"tensor x from cu_seqlens {message}")):
        RaggedTensor.from_packed(tokens, None, np.zeros((5, 2), np.float32), cu_seqlens=inputs)


@pytest.mark.parametrize(("told", "make"), [
    ("a mask", RaggedTensor.from_padded), ("cu_seqlens", RaggedTensor.from_packed)])
def test_lengths_need_a_structure_a_mask_or_cu_seqlens(told, make):
    triangle = Tensor("t", {batch: batches(), row: lengths(batch), col: row + 1})
    with pytest.raises(ValueError, match=f"tensor x without a structure: give one, or {told} to infer the lengths"):
        make(tokens, None, np.zeros((3, 3, 2), np.float32))
    with pytest.raises(ValueError, match=rf"tensor t without a structure: {told} determines the lengths of \[batch"):
        make(triangle, None, np.zeros((3, 3, 3), np.float32))


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
def test_a_structure_is_made_from_inferred_lengths():
    packed = np.arange(10, dtype=np.float32).reshape(5, 2)
    made = RaggedTensor.from_packed(tokens, None, packed, cu_seqlens=np.array([0, 3, 3, 5], dtype=np.int32))
    np.testing.assert_array_equal(made.structure.table(lengths), LENGTHS)
    padded, mask = made.to_padded()
    again = RaggedTensor.from_padded(tokens, None, padded, mask=mask)
    np.testing.assert_array_equal(again.structure.table(lengths), LENGTHS)
    np.testing.assert_array_equal(again.data, made.data)
    for count in (4, 6):
        with pytest.raises(ValueError, match=f"{2 * count} packed elements: it has 10, as cu_seqlens end with 5"):
            RaggedTensor.from_packed(tokens, None, np.zeros((count, 2), np.float32), cu_seqlens=[0, 3, 3, 5])


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
def test_empty_batches_are_inferred():
    made = RaggedTensor.from_packed(tokens, None, np.zeros((0, 2), np.float32), cu_seqlens=[0])
    padded, mask = made.to_padded()
    assert mask.shape == (0, 0)
    assert RaggedTensor.from_padded(tokens, None, padded, mask=mask).data.size == 0


def test_an_empty_batch():
    of = Structure({lengths: []}, InterpretedLibrary)
    made = RaggedTensor.zeros(tokens, of)
    packed, starts = made.to_packed()
    assert packed.shape == (0, 2)
    np.testing.assert_array_equal(starts, [0])
    assert made.to_padded()[0].shape == (0, 0, 2)
