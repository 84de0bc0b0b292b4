"""Formulas for the computation, activations and auxiliary arrays of an encoder layer."""

import numpy as np
import pytest

from sparloom.measure import geomean
from sparloom.ragged import (
    DATASETS,
    PRELUDES,
    EncoderSizes,
    LoopPadding,
    StoragePadding,
    TileSizes,
    auxiliary_bytes,
    dense_activations,
    dense_flops,
    partial_flops,
    ragged_activations,
    ragged_flops,
    read_lengths,
    with_bulk_sequence,
)

SMALL = EncoderSizes(heads=2, head=3, feedforward=5)  # width 6
LENGTHS = np.array([3, 1])


def test_computation_without_padding():
    assert ragged_flops(LENGTHS, SMALL) == {
        "qkv": 3 * 4 * 6 * 7, "scores": 2 * 10 * 3, "softmax": 2 * 10 * 5, "values": 2 * 10 * 3,
        "projection": 4 * 6 * 7, "norm1": 4 * 6 * 4, "ff1": 4 * 5 * (6 + 2), "ff2": 4 * 6 * (5 + 1),
        "norm2": 4 * 6 * 4}


def test_computation_with_full_padding_is_that_of_equal_lengths():
    assert dense_flops(LENGTHS, SMALL) == ragged_flops(np.array([3, 3]), SMALL)
    assert dense_flops(LENGTHS, SMALL, padded=4) == ragged_flops(np.array([4, 4]), SMALL)
    with pytest.raises(ValueError, match="sequences padded to 2: the longest has 3 tokens, use at least as many"):
        dense_flops(LENGTHS, SMALL, padded=2)


def test_every_loop_is_padded_by_its_own_multiple():
    found = partial_flops(LENGTHS, SMALL, LoopPadding(5, (2, 4), (1, 2), (4, 3)))
    assert found == ragged_flops(LENGTHS, SMALL) | {
        "qkv": 3 * 5 * 6 * 7, "scores": 2 * (4 * 4 + 2 * 4) * 3, "softmax": 2 * (3 * 4 + 1 * 2) * 5,
        "values": 2 * (4 * 3 + 4 * 3) * 3, "projection": 5 * 6 * 7, "norm1": 5 * 6 * 4, "ff1": 5 * 5 * 8,
        "ff2": 5 * 6 * 6, "norm2": 5 * 6 * 4}


@pytest.mark.parametrize(("lengths", "added"), [([60, 1], 3), ([64], 64), ([1], 63), ([65], 63)])
def test_a_bulk_sequence_completes_the_sum(lengths, added):
    np.testing.assert_array_equal(with_bulk_sequence(np.array(lengths), 64), [*lengths, added])


def test_activations():
    ragged = {"qkv": 3 * 4 * 6, "scores": 2 * 10, "probabilities": 2 * 10, "attention": 4 * 6, "projection": 4 * 6,
              "norm1": 4 * 6, "ff1": 4 * 5, "ff2": 4 * 6, "norm2": 4 * 6}
    assert ragged_activations(LENGTHS, SMALL, StoragePadding(1, 1, 1)) == ragged
    assert dense_activations(LENGTHS, SMALL) == ragged_activations(np.array([3, 3]), SMALL, StoragePadding(1, 1, 1))
    assert dense_activations(LENGTHS, SMALL, padded=4)["scores"] == 2 * 2 * 4 * 4
    assert ragged_activations(LENGTHS, SMALL, StoragePadding(sequence=2, scores=4, tokens=3)) == {
        "qkv": 3 * 6 * 6, "scores": 2 * 32, "probabilities": 2 * 32, "attention": 6 * 6, "projection": 6 * 6,
        "norm1": 6 * 6, "ff1": 6 * 5, "ff2": 6 * 6, "norm2": 6 * 6}


def build(name, subject, *, lengths=LENGTHS, purpose="storage", **tiles):
    return next(table for table in PRELUDES[name](lengths, SMALL, TileSizes(**tiles))
                if (table.subject, table.purpose) == (subject, purpose)).build()


@pytest.mark.parametrize(("built", "expected"), [
    (build("by_tensor", "input"), [[0, 3, 4]]),
    (build("by_tensor", "qkv", storage=2), [[0, 4, 6]]),
    (build("by_tensor", "scores", storage=2), [[0, 16, 20]]),
    (build("sparse_by_tensor", "qkv", storage=2), [[0, 4, 6, 10, 12, 16, 18]]),
    (build("sparse_by_tensor", "scores", storage=2),
     [[0, 4, 6], [0, 4, 8, 12, 16, 20, 24, 28, 32, 34, 36, 38, 40]]),
    (build("shared", "qkv", purpose="fusion"), [[0, 0, 0, 1], [0, 1, 2, 0], [0, 3]]),
    (build("shared", "values", lengths=np.array([2, 0, 1]), purpose="fusion", values=1),
     [[0, 0, 2], [0, 1, 0], [0, 2, 2, 3]]),
    (build("shared", "scores", lengths=np.array([3, 0]), purpose="fusion", scores=2),
     [[0, 0, 0, 0], [0, 1, 2, 3], [0, 4, 4]]),
])
def test_tables(built, expected):
    for array, wanted in zip(built, expected, strict=True):
        np.testing.assert_array_equal(array, wanted)
        assert array.dtype == np.int32


def test_entries_of_ragged_and_sparse_storage():
    lengths, batch = np.array([70, 64, 5, 1]), 4
    entries = {name: {table.subject: table.entries for table in PRELUDES[name](lengths, EncoderSizes(), TileSizes())
                      if table.purpose == "storage"} for name in PRELUDES}
    assert entries["shared"] == dict.fromkeys(("input", "qkv", "scores"), batch + 1)
    assert set(entries["by_tensor"].values()) == {batch + 1}
    assert entries["sparse_by_tensor"]["qkv"] == 3 * batch + 1
    assert entries["sparse_by_tensor"]["scores"] == batch + 1 + 8 * (128 + 64 + 64 + 64) + 1
    assert entries["sparse_by_tensor"]["ff1"] == batch + 1
    counts = {name: len(PRELUDES[name](lengths, EncoderSizes(), TileSizes())) for name in PRELUDES}
    assert counts == {"redundant": 22 + 9, "by_tensor": 9 + 3, "shared": 3 + 3, "sparse_redundant": 22,
                      "sparse_by_tensor": 9}


def test_offsets_beyond_32_bits_are_refused():
    with pytest.raises(ValueError, match=r"offsets up to 2147483648: 32-bit tables end at 2\^31 - 1"):
        build("shared", "scores", lengths=np.full(2, 2**15), storage=1)


@pytest.mark.paper
@pytest.mark.parametrize(("size", "percent"), [(32, 3.5), (128, 2.3)])
def test_partial_padding_costs_what_the_paper_says(seqlens, size, percent):
    ratios = []
    for name in DATASETS:
        batches = read_lengths(name, seqlens).batches(size)
        partial = sum(sum(partial_flops(with_bulk_sequence(batch, 64), EncoderSizes(), LoopPadding()).values())
                      for batch in batches)
        ratios.append(partial / sum(sum(ragged_flops(batch, EncoderSizes()).values()) for batch in batches))
    assert 100 * (geomean(ratios) - 1) == pytest.approx(percent, abs=0.05)


@pytest.mark.paper
@pytest.mark.parametrize(("name", "size", "arm", "storage", "fusion"), [
    ("cola", 32, "redundant", 2.93, 32.15), ("cola", 32, "by_tensor", 1.2, 5.27),
    ("cola", 128, "redundant", 11.18, 104.22), ("cola", 128, "by_tensor", 4.58, 17.5),
    ("race", 32, "redundant", 2.93, 666.54), ("race", 32, "by_tensor", 1.2, 106.87),
    ("race", 128, "redundant", 11.18, 2609.58), ("race", 128, "by_tensor", 4.58, 418.06)])
def test_preludes_have_the_sizes_of_the_paper(seqlens, name, size, arm, storage, fusion):
    """The paper rounds up."""
    found = {"storage": [], "fusion": []}
    for batch in read_lengths(name, seqlens).batches(size):
        tables = PRELUDES[arm](with_bulk_sequence(batch, 64), EncoderSizes(), TileSizes())
        for purpose, taken in found.items():
            taken.append(auxiliary_bytes(tables, purpose) / 1024)
    assert 0 <= storage - np.mean(found["storage"]) < 0.01
    assert -0.005 < fusion - np.mean(found["fusion"]) < 0.01
