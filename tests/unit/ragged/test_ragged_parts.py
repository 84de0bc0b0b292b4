"""Tensors whose parts are defined by several operations."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import batch, batches, inner, lengths, row, which

from sparloom.errors import IllegalSchedule
from sparloom.ragged import Structure, Tensor, compute, compute_at, interpreted, part, program, real

token = {batch: batches(), row: lengths(batch)}
x = Tensor("x", {**token, inner: 3})
pair = Tensor("pair", {**token, which: 2, inner: 3})
value = x[batch, row, inner]
DOUBLE, NEXT = part("double", pair, {which: 0}, value + value), part("next", pair, {which: 1}, value + real(1.0))


def test_parts_are_nests_of_one_tensor():
    both = program("both", [DOUBLE, NEXT], ["pair"])
    of = Structure({lengths: [2, 0, 1]}, InterpretedLibrary)
    inputs = np.arange(9, dtype=np.float32)
    found = interpreted(both, of, x=inputs)["pair"].reshape(3, 2, 3)
    np.testing.assert_array_equal(found, np.stack([2 * inputs.reshape(3, 3), inputs.reshape(3, 3) + 1], axis=1))
    assert "pair[batch, row, 1, inner] = x[batch, row, inner] + 1.0" in str(both)


def test_all_parts_precede_readers_of_the_tensor():
    last = compute("last", {**token, inner: 3}, pair[batch, row, 0, inner])
    program("fine", [DOUBLE, NEXT, last])
    with pytest.raises(IllegalSchedule, match="last reads pair before it is computed: put pair first"):
        program("late", [DOUBLE, last, NEXT])


@pytest.mark.parametrize("inputs", [
    [DOUBLE], [DOUBLE, NEXT, part("again", pair, {which: 1}, value)],
    [DOUBLE, part("other", pair, {inner: 1}, x[batch, row, which])],
])
def test_parts_define_every_element_once(inputs):
    with pytest.raises(IllegalSchedule, match="they must fix the same dimensions, and have every coordinate once"):
        program("p", inputs, ["pair"])


def test_a_part_and_the_whole_are_refused():
    with pytest.raises(IllegalSchedule, match="define every tensor once"):
        program("p", [DOUBLE, NEXT, compute("pair", dict(pair.axes), x[batch, row, inner])])


def test_a_part_has_a_coordinate_of_a_constant_dimension():
    with pytest.raises(IllegalSchedule, match="part third of pair at which = 2: use a coordinate of a dimension of "
                                              "constant extent: which: 2, inner: 3"):
        part("third", pair, {which: 2}, value)
    with pytest.raises(IllegalSchedule, match="part first of pair at row = 0"):
        part("first", pair, {row: 0}, value)


def test_a_part_is_not_computed_where_it_is_read():
    last = compute("last", {**token, inner: 3}, pair[batch, row, 0, inner])
    with pytest.raises(IllegalSchedule, match=r"double cannot be computed .* in parts"):
        compute_at(program("p", [DOUBLE, NEXT, last]), "double", "last", "row")
