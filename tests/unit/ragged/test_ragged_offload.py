"""Dense inner tiles as products."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, batch, batches, expected, inner, lengths, operands, out, row, structure

from sparloom.errors import IllegalSchedule
from sparloom.ir import pretty
from sparloom.ops import assert_close
from sparloom.ragged import (
    Executable,
    RaggedTensor,
    Structure,
    Tensor,
    compute,
    fuse,
    interpreted,
    lower,
    offload,
    pad_loop,
    pad_storage,
    parallel,
    program,
    reorder,
    reorder_dimensions,
    split,
    split_dimension,
    split_operation,
    sum_over,
    vectorise,
)

PROJECTION, SCORES, VALUES = (CASES[name].program for name in ("projection", "scores", "values"))
TILE = ("batch_row_inner", "out_inner", "inner")


def tiled_projection(rows=4, cols=2):
    tiled = split(split(fuse(PROJECTION, "y", "batch", "row"), "y", "batch_row", rows), "y", "out", cols)
    return reorder(tiled, "y", ("batch_row_outer", "out_outer", *TILE))


def computes(name, scheduled, given=(5, 0, 3)):
    of = structure(list(given))
    inputs = operands(scheduled, of, seed=1)
    found = interpreted(scheduled, of, **{each: value.data for each, value in inputs.items()})
    for output, oracle in expected(CASES[name], of, inputs).items():
        packed = RaggedTensor(scheduled.tensors()[output], of, found[output]).to_packed()[0].reshape(-1)
        assert_close(packed, oracle, terms=16, scale=8.0)


def refused(message, *arguments):
    with pytest.raises(IllegalSchedule, match=message):
        offload(*arguments)


def test_a_projection_with_fused_operations():
    scheduled = parallel(offload(tiled_projection(), "y", *TILE), "y", "batch_row_outer")
    text = str(scheduled)
    assert "dense for batch_row_inner in 0 .. min(4, " in text
    assert "y[batch, row, out] = max(y[batch, row, out] + bias[out], 0.0)" in text
    computes("projection", scheduled)


def test_a_reduction_in_blocks_adds_to_the_first():
    blocks = reorder(split(tiled_projection(), "y", "inner", 2), "y", (
        "batch_row_outer", "inner_outer", "out_outer", "batch_row_inner", "out_inner", "inner_inner"))
    scheduled = offload(blocks, "y", "batch_row_inner", "out_inner", "inner_inner")
    computes("projection", scheduled)


def test_a_reduction_of_variable_extent_in_blocks_begins_with_zeros():
    split_reduction = split(VALUES, "o", "col", 2)
    order = ("batch", "head", "col_outer", "row", "inner", "col_inner")
    scheduled = offload(reorder(split_reduction, "o", order), "o", "row", "inner", "col_inner")
    computes("values", scheduled, (5, 0, 3, 1))


def test_a_part_that_continues_a_reduction_adds():
    halves = split_operation(VALUES, "o", VALUES.nest("o").operation.reduced[0][0], point=2)
    for part in ("o_main", "o_rest"):
        halves = reorder(halves, part, ("batch", "head", "row", "inner"))
        names = [loop.name for loop in halves.nest(part).loops[-3:]]
        halves = offload(halves, part, *names)
    computes("values", halves, (5, 0, 3, 1))


def test_weights_in_panels_are_read_without_division():
    panels = reorder_dimensions(split_dimension(tiled_projection(), "w", "out", 2), "w", (
        "out_block", "inner", "out_within"))
    scheduled = offload(panels, "y", *TILE)
    assert "stored as [out_block: 2, inner: 3, out_within: 2]" in str(scheduled)
    computes("projection", scheduled)


def test_the_operand_with_the_rows_may_be_the_second():
    x, w = Tensor("x", {batch: batches(), row: lengths(batch), inner: 3}), Tensor("w", {inner: 3, out: 4})
    swapped = program("swapped", [compute("y", {batch: batches(), row: lengths(batch), out: 4}, sum_over(
        {inner: 3}, w[inner, out] * x[batch, row, inner]))])
    of = Structure({lengths: [2, 1]}, InterpretedLibrary)
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((3, 3)).astype(np.float32), "w": rng.standard_normal((3, 4)).astype(np.float32)}
    found = interpreted(offload(swapped, "y", "row", "out", "inner"), of, **values)["y"]
    np.testing.assert_allclose(found.reshape(3, 4), values["x"] @ values["w"], rtol=1e-5)


def test_rows_without_a_bound_use_no_local_array():
    """One column and any number of rows: more than a local array has."""
    columns = reorder(split(PROJECTION, "y", "out", 1), "y", ("batch", "out_outer", "row", "out_inner", "inner"))
    scheduled = offload(columns, "y", "row", "out_inner", "inner")
    assert "y_tile" not in pretty(lower(scheduled)[0].kernel)
    computes("projection", scheduled)


def test_products_of_matrices_only():
    refused("scores|s cannot be offloaded: elements of k are not contiguous along loop col",
            reorder(SCORES, "s", ("batch", "head", "row", "col", "inner")), "s", "row", "col", "inner")
    scaled = CASES["scaled"].program
    refused("use two serial loops of the result, then a serial one of the reduction", scaled, "y", "batch", "row",
            "inner")
    refused("the innermost are batch_row_inner, out_inner, inner: reorder first", tiled_projection(), "y", "out_inner",
            "batch_row_inner", "inner")
    sums = CASES["softmax"].program
    refused("the reduction does not sum products of two tensors", reorder(sums, "z", ("batch", "row", "head")), "z",
            "row", "head", "col")
    refused("elements of x are not contiguous along loop row: reorder its dimensions",
            reorder(PROJECTION, "y", ("batch", "out", "row", "inner")), "y", "out", "row", "inner")
    refused("elements of x are not evenly spaced along batch_row_inner, out_inner and inner",
            pad_storage(tiled_projection(), "x", {row: 4}), "y", *TILE)


def test_a_padded_reduction_is_not_offloaded():
    padded = pad_storage(pad_storage(VALUES, "p", {dim: 4 for dim, _ in VALUES.tensors()["p"].axes[3:]}), "v", {
        VALUES.tensors()["v"].axes[1][0]: 4})
    padded = pad_loop(padded, "o", VALUES.nest("o").operation.reduced[0][0], 4)
    refused("loop col of the reduction is padded: products need no padding",
            reorder(padded, "o", ("batch", "head", "row", "inner", "col")), "o", "row", "inner", "col")


def test_offloaded_loops_stay_whole_and_innermost():
    done = offload(tiled_projection(), "y", *TILE)
    for step in (lambda: reorder(done, "y", ("inner", "out_inner")), lambda: vectorise(done, "y", "inner"),
                 lambda: parallel(done, "y", "batch_row_inner"), lambda: split(done, "y", "inner", 2)):
        with pytest.raises(IllegalSchedule, match=r"tile product|is already dense"):
            step()


@pytest.mark.cc
def test_compiled_with_more_rows_than_a_tile(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    scheduled = parallel(offload(tiled_projection(rows=48, cols=4), "y", *TILE), "y", "batch_row_outer")
    of = structure([60, 1, 0, 77])
    inputs = operands(scheduled, of, seed=1)
    run = Executable(scheduled)
    found = run(of, **{each: value.data for each, value in inputs.items()})
    assert "multiply_f32(" in run.source()
    assert "multiply_f32(" not in run.cuda()[0]
    assert_close(found, expected(CASES["projection"], of, inputs)["y"], terms=16, scale=8.0)
