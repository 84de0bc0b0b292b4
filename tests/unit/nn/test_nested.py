"""Conversion of ragged tensors from and to torch.nested."""

import numpy as np
import pytest
import torch
from interpreted import InterpretedLibrary

from sparloom.nn import from_nested, to_nested
from sparloom.ragged import Length, Structure, Tensor, dims

batch, row, col, inner = dims("batch row col inner")
lengths = Length("lengths", {batch: Length("batches")()})
batches = lengths.axes[0][1]
tokens = Tensor("x", {batch: batches, row: lengths(batch), inner: 2})


def nested(*inputs):
    values = [torch.arange(2.0 * length).reshape(length, 2) + 10 * length for length in inputs]
    return torch.nested.nested_tensor(values, layout=torch.jagged)


def structure(*inputs):
    return Structure({lengths: inputs}, InterpretedLibrary)


@pytest.mark.parametrize("tensor", [tokens, tokens.stored(padding={row: 4})])
def test_round_trips_keep_all_values(tensor):
    inputs = nested(3, 1, 2)
    made = from_nested(tensor, inputs, structure(3, 1, 2))
    back = to_nested(made)
    assert torch.equal(back.values(), inputs.values())
    assert torch.equal(back.offsets(), inputs.offsets())


def test_unpadded_values_are_shared():
    inputs = nested(3, 1)
    made = from_nested(tokens, inputs, structure(3, 1))
    inputs.values()[0, 0] = 7.0
    assert made.data[0] == 7.0


def test_the_structure_is_that_of_the_lengths():
    with pytest.raises(ValueError, match="tensor x: the lengths of the nested tensor differ from those of the"):
        from_nested(tokens, nested(3, 1), structure(1, 3))


@pytest.mark.cc
def test_a_structure_is_made_from_the_lengths(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    made = from_nested(tokens, nested(3, 1))
    np.testing.assert_array_equal(made.structure.table(lengths), [3, 1])


def test_other_forms_are_refused():
    with pytest.raises(ValueError, match=r"tensor x: the source has layout torch\.strided: make it by"):
        from_nested(tokens, torch.zeros(3, 2))
    square = Tensor("s", {batch: batches, row: lengths(batch), col: lengths(batch)})
    with pytest.raises(ValueError, match=r"tensor s has no jagged form: torch\.nested supports one ragged dimension"):
        from_nested(square, nested(3, 1))
