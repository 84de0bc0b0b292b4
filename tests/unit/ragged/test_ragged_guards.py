"""Changes of padding as parts of other operations."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, HEADS, SIZE, batch, batches, col, expected, head, inner, lengths, operands, row

from sparloom import ragged
from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary
from sparloom.ops import assert_close

token = {batch: batches(), row: lengths(batch), head: HEADS, inner: SIZE}
q = ragged.Tensor("q", token)


def test_added_padding_is_fused_with_the_product_that_reads_it():
    fused = ragged.inline(ragged.inline(CASES["added"].program, "q_added"), "k_added")
    stored = ragged.pad_storage(fused, "s", {row: 4, col: 4})
    tiled = ragged.split(ragged.pad_loop(ragged.pad_loop(stored, "s", row, 4), "s", col, 4), "s", "col", 4)
    tiled = ragged.unroll(tiled, "s", "col_inner")
    of = ragged.Structure({lengths: [5, 0, 3, 8]}, InterpretedLibrary)
    inputs = operands(tiled, of, seed=1)
    found = ragged.interpreted(tiled, of, **{name: value.data for name, value in inputs.items()})["s"]
    made = ragged.RaggedTensor(tiled.tensors()["s"], of, found)
    assert_close(made.to_packed()[0].reshape(-1), expected(CASES["scores"], of, inputs)["s"], terms=SIZE, scale=8.0)
    assert np.isfinite(found).all()  # padding is computed from zeros


def test_an_unguarded_read_is_refused():
    ragged.pad_loop(ragged.pad_storage(CASES["added"].program, "q_added", {row: 4}), "q_added", row, 4)
    copied = ragged.compute("y", token, q[batch, row, head, inner])
    with pytest.raises(IllegalSchedule, match="y accesses q, dimension row, at row, whose loops are padded"):
        ragged.pad_loop(ragged.pad_storage(ragged.program("p", [copied]), "y", {row: 4}), "y", row, 4)
    longer = ragged.compute("y", token,
                            ragged.where(ragged.less(row, lengths(batch) + 1), q[batch, row, head, inner],
                                         ragged.real(0.0)))
    with pytest.raises(IllegalSchedule, match="y accesses q, dimension row, at row, whose loops are padded"):
        ragged.pad_loop(ragged.pad_storage(ragged.program("p", [longer]), "y", {row: 4}), "y", row, 4)


def test_a_weaker_condition_does_not_hide_the_extent():
    ragged.program("p",
                   [ragged.compute("y", token,
                                   ragged.where(ragged.less(row, 9), q[batch, row, head, inner], ragged.real(0.0)))])


def test_a_conjunction_bounds_its_branch_only():
    both = Binary("and", ragged.less(row, lengths(batch)), ragged.less(head, HEADS))
    kept = ragged.compute("y", token, ragged.where(both, q[batch, row, head, inner], ragged.real(0.0)))
    ragged.pad_loop(ragged.pad_storage(ragged.program("p", [kept]), "y", {row: 4}), "y", row, 4)
    swapped = ragged.compute("y", token, ragged.where(both, ragged.real(0.0), q[batch, row, head, inner]))
    with pytest.raises(IllegalSchedule, match="y accesses q, dimension row, at row, whose loops are padded"):
        ragged.pad_loop(ragged.pad_storage(ragged.program("p", [swapped]), "y", {row: 4}), "y", row, 4)


def test_tables_are_not_read_beyond_the_end_of_a_condition():
    """Rows of a triangle begin at entries of a table, which has none for padded rows."""
    triangle = ragged.Tensor("x", {batch: batches(), row: lengths(batch), col: row + 1, inner: 2})
    y = ragged.compute("y", {batch: batches(), row: lengths(batch), inner: 2}, ragged.where(
        ragged.less(row, lengths(batch)), triangle[batch, row, 0, inner], ragged.real(0.0)))
    padded = ragged.pad_loop(ragged.pad_storage(ragged.program("p", [y]), "y", {row: 8}), "y", row, 8)
    of = ragged.Structure({lengths: [5, 3]}, InterpretedLibrary)
    inputs = operands(padded, of, seed=2)
    found = ragged.interpreted(padded, of, x=inputs["x"].data)["y"]
    np.testing.assert_array_equal(found.reshape(16, 2)[:5, 0], [inputs["x"].slice(0, each)[0, 0] for each in range(5)])
    assert len(ragged.lower(padded)) == 1


def test_a_sum_is_bounded_by_a_condition_on_one_of_its_parts():
    later = ragged.Dim("later")

    def moved(limit):
        seen = ragged.where(ragged.less(later, limit), q[batch, row + later, head, inner], ragged.real(0.0))
        return ragged.program("p", [ragged.compute("y", token, ragged.sum_over({later: lengths(batch)}, seen))])

    of = ragged.Structure({lengths: [5, 0, 3]}, InterpretedLibrary)
    inputs = operands(program := moved(lengths(batch) - row), of, seed=3)
    found = ragged.RaggedTensor(program.tensors()["y"], of, ragged.interpreted(program, of, q=inputs["q"].data)["y"])
    for number, length in enumerate([5, 0, 3]):
        values = inputs["q"].slice(number)[:length].astype(float)
        np.testing.assert_allclose(found.slice(number)[:length], values[::-1].cumsum(0)[::-1], atol=1e-5)
    for limit in (lengths(batch) - row + 1, lengths(batch), lengths(batch) - head):
        with pytest.raises(IllegalSchedule, match=r"at row \+ later, which cannot be shown to stay below"):
            moved(limit)
