"""Changes of padding as parts of other operations."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, HEADS, SIZE, batch, batches, col, expected, head, inner, lengths, operands, row

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary
from sparloom.ops import assert_close
from sparloom.ragged import (
    RaggedTensor,
    Structure,
    Tensor,
    compute,
    inline,
    interpreted,
    less,
    lower,
    pad_loop,
    pad_storage,
    program,
    real,
    split,
    unroll,
    where,
)

token = {batch: batches(), row: lengths(batch), head: HEADS, inner: SIZE}
q = Tensor("q", token)


def test_added_padding_is_fused_with_the_product_that_reads_it():
    fused = inline(inline(CASES["added"].program, "q_added"), "k_added")
    stored = pad_storage(fused, "s", {row: 4, col: 4})
    tiled = split(pad_loop(pad_loop(stored, "s", row, 4), "s", col, 4), "s", "col", 4)
    tiled = unroll(tiled, "s", "col_inner")
    of = Structure({lengths: [5, 0, 3, 8]}, InterpretedLibrary)
    inputs = operands(tiled, of, seed=1)
    found = interpreted(tiled, of, **{name: value.data for name, value in inputs.items()})["s"]
    made = RaggedTensor(tiled.tensors()["s"], of, found)
    assert_close(made.to_packed()[0].reshape(-1), expected(CASES["scores"], of, inputs)["s"], terms=SIZE, scale=8.0)
    assert np.isfinite(found).all()  # padding is computed from zeros


def test_an_unguarded_read_is_refused():
    pad_loop(pad_storage(CASES["added"].program, "q_added", {row: 4}), "q_added", row, 4)
    copied = compute("y", token, q[batch, row, head, inner])
    with pytest.raises(IllegalSchedule, match="y accesses q, dimension row, at row, whose loops are padded"):
        pad_loop(pad_storage(program("p", [copied]), "y", {row: 4}), "y", row, 4)
    longer = compute("y", token, where(less(row, lengths(batch) + 1), q[batch, row, head, inner], real(0.0)))
    with pytest.raises(IllegalSchedule, match="y accesses q, dimension row, at row, whose loops are padded"):
        pad_loop(pad_storage(program("p", [longer]), "y", {row: 4}), "y", row, 4)


def test_a_weaker_condition_does_not_hide_the_extent():
    program("p", [compute("y", token, where(less(row, 9), q[batch, row, head, inner], real(0.0)))])


def test_a_conjunction_bounds_its_branch_only():
    both = Binary("and", less(row, lengths(batch)), less(head, HEADS))
    kept = compute("y", token, where(both, q[batch, row, head, inner], real(0.0)))
    pad_loop(pad_storage(program("p", [kept]), "y", {row: 4}), "y", row, 4)
    swapped = compute("y", token, where(both, real(0.0), q[batch, row, head, inner]))
    with pytest.raises(IllegalSchedule, match="y accesses q, dimension row, at row, whose loops are padded"):
        pad_loop(pad_storage(program("p", [swapped]), "y", {row: 4}), "y", row, 4)


def test_tables_are_not_read_beyond_the_end_of_a_condition():
    """Rows of a triangle begin at entries of a table, which has none for padded rows."""
    triangle = Tensor("x", {batch: batches(), row: lengths(batch), col: row + 1, inner: 2})
    y = compute("y", {batch: batches(), row: lengths(batch), inner: 2}, where(
        less(row, lengths(batch)), triangle[batch, row, 0, inner], real(0.0)))
    padded = pad_loop(pad_storage(program("p", [y]), "y", {row: 8}), "y", row, 8)
    of = Structure({lengths: [5, 3]}, InterpretedLibrary)
    inputs = operands(padded, of, seed=2)
    found = interpreted(padded, of, x=inputs["x"].data)["y"]
    np.testing.assert_array_equal(found.reshape(16, 2)[:5, 0], [inputs["x"].slice(0, each)[0, 0] for each in range(5)])
    assert len(lower(padded)) == 1
