"""Dense inner tiles as products."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, batch, batches, expected, inner, lengths, operands, out, row, structure

from sparloom import ragged
from sparloom.errors import IllegalSchedule
from sparloom.ops import assert_close

PROJECTION, SCORES, VALUES = (CASES[name].program for name in ("projection", "scores", "values"))
TILE = ("batch_row_inner", "out_inner", "inner")


def tiled_projection(rows=4, cols=2):
    tiled = ragged.split(ragged.split(ragged.fuse(PROJECTION, "y", "batch", "row"), "y", "batch_row", rows), "y",
                         "out", cols)
    return ragged.reorder(tiled, "y", ("batch_row_outer", "out_outer", *TILE))


def test_the_operand_with_the_rows_may_be_the_second():
    x, w = ragged.Tensor("x", {batch: batches(), row: lengths(batch), inner: 3}), ragged.Tensor("w", {inner: 3, out: 4})
    swapped = ragged.program("swapped",
                             [ragged.compute("y", {batch: batches(), row: lengths(batch), out: 4}, ragged.sum_over(
        {inner: 3}, w[inner, out] * x[batch, row, inner]))])
    of = ragged.Structure({lengths: [2, 1]}, InterpretedLibrary)
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((3, 3)).astype(np.float32), "w": rng.standard_normal((3, 4)).astype(np.float32)}
    found = ragged.interpreted(ragged.offload(swapped, "y", "row", "out", "inner"), of, **values)["y"]
    np.testing.assert_allclose(found.reshape(3, 4), values["x"] @ values["w"], rtol=1e-5)


def padded_reduction():
    col, value_row = VALUES.nest("o").operation.reduced[0][0], VALUES.tensors()["v"].axes[1][0]
    stored = ragged.pad_storage(ragged.pad_storage(VALUES, "p", {col: 4}), "v", {value_row: 4})
    return ragged.reorder(ragged.pad_loop(stored, "o", col, 4), "o", ("batch", "head", "row", "inner", "col"))


@pytest.mark.parametrize(("message", "scheduled", "loops"), [
    ("s cannot be offloaded: elements of k are not contiguous along loop col",
     ragged.reorder(SCORES, "s", ("batch", "head", "row", "col", "inner")), ("s", "row", "col", "inner")),
    ("use two serial loops of the result, then a serial one of the reduction", CASES["scaled"].program,
     ("y", "batch", "row", "inner")),
    ("the innermost are batch_row_inner, out_inner, inner: reorder first", tiled_projection(),
     ("y", "out_inner", "batch_row_inner", "inner")),
    ("the reduction does not sum products of two tensors",
     ragged.reorder(CASES["softmax"].program, "z", ("batch", "row", "head")), ("z", "row", "head", "col")),
    ("elements of x are not contiguous along loop row: reorder its dimensions",
     ragged.reorder(PROJECTION, "y", ("batch", "out", "row", "inner")), ("y", "out", "row", "inner")),
    ("elements of x are not evenly spaced along batch_row_inner, out_inner and inner",
     ragged.pad_storage(tiled_projection(), "x", {row: 4}), ("y", *TILE)),
    ("loop col of the reduction is padded: products need no padding", padded_reduction(),
     ("o", "row", "inner", "col")),
])
def test_products_of_matrices_only(message, scheduled, loops):
    with pytest.raises(IllegalSchedule, match=message):
        ragged.offload(scheduled, *loops)


def test_offloaded_loops_stay_whole_and_innermost():
    done = ragged.offload(tiled_projection(), "y", *TILE)
    for step in (lambda: ragged.reorder(done, "y", ("inner", "out_inner")),
                 lambda: ragged.vectorise(done, "y", "inner"), lambda: ragged.remap(done, "y", "out_inner"),
                 lambda: ragged.parallel(done, "y", "batch_row_inner"), lambda: ragged.split(done, "y", "inner", 2)):
        with pytest.raises(IllegalSchedule, match=r"tile product|is already dense"):
            step()


@pytest.mark.cc
def test_compiled_with_more_rows_than_a_tile(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    scheduled = ragged.parallel(ragged.offload(tiled_projection(rows=48, cols=4), "y", *TILE), "y", "batch_row_outer")
    of = structure([60, 1, 0, 77])
    inputs = operands(scheduled, of, seed=1)
    run = ragged.Executable(scheduled)
    found = run(of, **{each: value.data for each, value in inputs.items()})
    assert "multiply_f32(" in run.source()
    assert "multiply_f32(" not in run.cuda()[0]
    assert_close(found, expected(CASES["projection"], of, inputs)["y"], terms=16, scale=8.0)
