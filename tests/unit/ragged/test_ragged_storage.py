"""Tensors stored in other dimensions, and those of one iteration."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, batch, batches, col, computes, head, inner, lengths, row

from sparloom import ragged
from sparloom.errors import IllegalSchedule

SOFTMAX, SCORES = CASES["softmax"].program, CASES["scores"].program
OF = ragged.Structure({lengths: [3, 0, 2]}, InterpretedLibrary)


def stored(changed, name):
    return changed.tensors()[name]


def test_blocks_are_whole():
    changed = ragged.split_dimension(SCORES, "s", "col", 2)
    assert OF.size(stored(changed, "s")) == 2 * (3 * 4 + 2 * 2)
    computes("scores", changed)


def test_dimensions_in_another_order():
    changed = ragged.reorder_dimensions(SCORES, "q", ("head", "batch", "row"))
    tensor = stored(changed, "q")
    values = np.arange(5 * 2 * 3, dtype=np.float32).reshape(5, 2, 3)
    data = ragged.RaggedTensor.from_packed(tensor, OF, values).data
    np.testing.assert_array_equal(data.reshape(2, 5, 3), values.transpose(1, 0, 2))
    np.testing.assert_array_equal(ragged.RaggedTensor(tensor, OF, data).to_packed()[0], values)
    computes("scores", changed)


@pytest.mark.parametrize(("step", "message"), [
    (lambda: ragged.reorder_dimensions(SCORES, "s", ("col", "batch")), "dimension col cannot be stored outside batch"),
    (lambda: ragged.reorder_dimensions(SCORES, "s", ("col", "col")), "names a dimension twice"),
    (lambda: ragged.split_dimension(SCORES, "s", "col", 0), "cannot be split into blocks of 0: use a positive int"),
    (lambda: ragged.split_dimension(SCORES, "s", "batch", 2), "lengths has no entry beyond its end"),
    (lambda: ragged.split_dimension(SCORES, "s", "inner", 2),
     "tensor s stores no dimension inner; there are: batch, row"),
    (lambda: ragged.split_dimension(SCORES, "t", "inner", 2), "has no tensor t; there are"),
])
def test_storage_that_is_refused(step, message):
    with pytest.raises(IllegalSchedule, match=message):
        step()


def test_a_local_producer_has_an_array_in_each_iteration():
    scheduled = ragged.compute_at(SOFTMAX, "z", "y", "head", local=True)
    scheduled = ragged.compute_at(scheduled, "e", "y", "head", local=True)
    assert "made e: local f32[col in 0 ..: lengths(batch)]" in str(scheduled)
    found = computes("softmax", ragged.parallel(scheduled, "y", "batch"))
    assert "e" not in found
    assert "z" not in found


def test_a_local_tile_begins_where_the_tile_does():
    scheduled = ragged.split(SOFTMAX, "y", "row", 2)
    for producer in ("z", "e", "top"):
        scheduled = ragged.compute_at(scheduled, producer, "y", "row_outer", local=True)
    assert "e: local f32[row in row_outer * 2 ..: min(lengths(batch) - row_outer * 2, 2), head in 0 ..: 2" in str(
        scheduled)
    computes("softmax", ragged.split_dimension(scheduled, "e", "col", 2))


def test_a_local_producer_may_be_recomputed():
    x = ragged.Tensor("x", {batch: batches(), row: lengths(batch)})
    twice = ragged.compute("twice", {batch: batches(), row: lengths(batch)}, x[batch, row] * ragged.real(2.0))
    y = ragged.compute("y", {batch: batches(), head: 3, row: lengths(batch)}, twice[batch, row] + ragged.real(head))
    prog = ragged.program("again", [twice, y])
    with pytest.raises(IllegalSchedule, match=r"so it would be computed again: .* or make it local"):
        ragged.compute_at(prog, "twice", "y", "head")
    values = np.arange(5, dtype=np.float32)
    found = ragged.interpreted(ragged.parallel(ragged.compute_at(prog, "twice", "y", "head", local=True), "y",
                                               "batch"), OF, x=values)["y"]
    expected = [2 * part + np.arange(3)[:, None] for part in (values[:3], values[3:])]
    np.testing.assert_array_equal(found, np.concatenate([each.reshape(-1) for each in expected]))


def test_rearranged_storage_is_not_made_local():
    changed = ragged.split_dimension(SOFTMAX, "e", "col", 2)
    with pytest.raises(IllegalSchedule, match="since its storage is rearranged: compute_at first"):
        ragged.compute_at(changed, "e", "y", "head", local=True)


def test_triangles_of_tiles():
    """A producer whose extent is the same throughout a tile of rows."""
    token = {batch: batches(), row: lengths(batch)}
    x = ragged.Tensor("x", {**token, inner: 2})
    end = ragged.minimum(lengths(batch), (row // 2 + 1) * 2)
    near = ragged.compute("near", {**token, col: end}, x[batch, col, 0] * ragged.real(3.0))
    total = ragged.compute("total", token, ragged.sum_over({col: end}, near[batch, row, col]))
    prog = ragged.split(ragged.program("triangle", [near, total]), "total", "row", 2)
    placed = ragged.compute_at(prog, "near", "total", "row_outer", local=True)
    assert "col in 0 ..: min(lengths(batch), row_outer * 2 + 2)" in str(placed)
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    found = ragged.interpreted(placed, OF, x=values)["total"]
    first, second = 3 * values[:3, 0], 3 * values[3:, 0]
    np.testing.assert_allclose(found, [first[:2].sum(), first[:2].sum(), first.sum(), second.sum(), second.sum()])
