"""Storage of elements, and its tables."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import batch, batches, col, head, inner, item, lengths, row, widths

from sparloom.errors import IllegalSchedule
from sparloom.ir import walk
from sparloom.ragged import At, Offsets, Structure, Tensor, dims, element_offsets, offset_steps

LENGTHS = [3, 0, 5, 1]
WIDTHS = [2, 0, 1, 4, 1, 1, 0, 3, 2]
(part,) = dims("part")


def structure():
    return Structure({lengths: LENGTHS, widths: WIDTHS}, InterpretedLibrary)


def tables(tensor):
    nodes = [node for step in offset_steps(tensor) for expr in (*step.rest, step.position) for node in walk(expr)]
    return {node.table for node in nodes if isinstance(node, At) and isinstance(node.table, Offsets)}


attention = Tensor("t", {batch: batches(), row: lengths(batch), head: 2, col: lengths(batch)})


@pytest.mark.parametrize("tensor", [
    Tensor("t", {row: 4, inner: 3}),
    Tensor("t", {batch: batches(), row: lengths(batch), inner: 3}),
    Tensor("t", {part: 3, batch: batches(), row: lengths(batch), inner: 2}),
    Tensor("t", {batch: batches(), head: 2, row: lengths(batch)}),
    attention,
    Tensor("t", {batch: batches(), row: lengths(batch), head: 2, col: row + 1}),
    Tensor("t", {batch: batches(), row: lengths(batch), item: widths(batch, row), inner: 2}),
    Tensor("t", {batch: batches(), row: lengths(batch), item: widths(batch, row), col: widths(batch, row)}),
    Tensor("t", {batch: batches(), row: lengths(batch), part: 2, item: widths(batch, row), col: lengths(batch)}),
    Tensor("t", {}),
])
def test_unpadded_elements_lie_one_after_the_other(tensor):
    of = structure()
    flat = element_offsets(tensor, of)[1]
    np.testing.assert_array_equal(flat, np.arange(flat.size))
    assert of.size(tensor) == flat.size


def test_padded_slices_begin_at_multiples():
    of = structure()
    tensor = Tensor("t", {batch: batches(), row: lengths(batch), inner: 3}, padding={row: 4, inner: 5})
    found, flat = element_offsets(tensor, of)
    starts = np.array([0, 4, 4, 12])
    np.testing.assert_array_equal(flat, (starts[found["batch"]] + found["row"]) * 5 + found["inner"])
    assert of.size(tensor) == 16 * 5


def test_full_slices_are_as_large_as_the_largest():
    of = structure()
    found, flat = element_offsets(attention.stored(full=(row, col), padding={col: 4}), of)
    np.testing.assert_array_equal(flat, ((found["batch"] * 5 + found["row"]) * 2 + found["head"]) * 8 + found["col"])
    assert of.size(attention.stored(full=(row, col), padding={col: 4})) == 4 * 5 * 2 * 8


def test_a_dimension_that_indexes_a_length_function_is_not_padded():
    tensor = Tensor("t", {batch: batches(), row: lengths(batch), item: widths(batch, row)}, padding={row: 4})
    with pytest.raises(IllegalSchedule, match="tensor t: row cannot be padded, since the extent of item reads length "
                                              "function widths at it, which has no entry beyond its end"):
        offset_steps(tensor)


@pytest.mark.parametrize(("padding", "message"), [
    ({col: 2}, "tensor t has no dimension col to pad; there are: row"), ({row: 0}, "padding of row to multiples of 0")])
def test_padding_of_an_unknown_dimension(padding, message):
    with pytest.raises(IllegalSchedule, match=message):
        Tensor("t", {row: 3}, padding=padding)


def test_a_length_of_a_middle_dimension_needs_a_table_of_that_dimension_alone():
    triangle = Tensor("t", {batch: batches(), row: lengths(batch), head: 2, col: row + 1})
    of = structure()
    by_axes = {len(table.axes): of.table(table) for table in tables(triangle)}
    assert len(tables(triangle)) == 2
    sizes = sorted(of.table(table).size for table in tables(triangle))
    assert sizes == [5, 6]  # sequences + 1, longest sequence + 1
    assert list(by_axes) == [1]
