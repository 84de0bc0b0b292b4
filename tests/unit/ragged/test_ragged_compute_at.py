"""Producers computed inside loops of their consumers, and operations that run at once."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, batch, batches, col, expected, inner, lengths, operands, row

from sparloom.errors import IllegalSchedule
from sparloom.ops import assert_close
from sparloom.ragged import (
    RaggedTensor,
    Structure,
    Tensor,
    bind_threads,
    compute,
    compute_at,
    fuse,
    hfuse,
    interpreted,
    less,
    pad_loop,
    pad_storage,
    parallel,
    program,
    real,
    reorder,
    split,
    split_operation,
    sum_over,
    where,
)

SOFTMAX, CAUSAL = CASES["softmax"].program, CASES["causal"].program
x = Tensor("x", {batch: batches(), row: lengths(batch), inner: 3})
token = {batch: batches(), row: lengths(batch)}
twice = compute("twice", {**token, inner: 3}, x[batch, row, inner] * real(2.0))
shifted = compute("shifted", {**token, inner: 3}, twice[batch, row, inner] + real(1.0))
CHAIN = program("chain", [twice, shifted])


def refused(message, step, *arguments, **options):
    with pytest.raises(IllegalSchedule, match=message):
        step(*arguments, **options)


def is_chain(scheduled):
    for entries in ([], [0], [5, 0, 2, 9]):
        of = Structure({lengths: entries}, InterpretedLibrary)
        inputs = operands(scheduled, of, seed=3)
        found = interpreted(scheduled, of, x=inputs["x"].data)["shifted"]
        packed = RaggedTensor(scheduled.tensors()["shifted"], of, found).to_packed()[0]
        assert_close(packed, 2.0 * inputs["x"].to_packed()[0].astype(float) + 1, terms=1, scale=4.0)


def softmax_at_rows():
    program = compute_at(SOFTMAX, "z", "y", "head")
    return compute_at(compute_at(program, "e", "y", "head"), "top", "y", "head")


def test_softmax_in_one_pass_over_rows(golden):
    fused = parallel(fuse(softmax_at_rows(), "y", "batch", "row"), "y", "batch_row")
    assert [launch.name for launch in fused.launches] == ["y"]
    golden("ragged/softmax.txt", str(fused))
    case = CASES["softmax"]
    of = Structure({lengths: [4, 0, 2]}, InterpretedLibrary)
    inputs = operands(fused, of, seed=1)
    found = interpreted(fused, of, p=inputs["p"].data)
    assert_close(found["y"], expected(case, of, inputs)["y"], terms=16)


@pytest.mark.parametrize("loop", ["batch", "row", "inner"])
def test_a_producer_at_each_loop(loop):
    is_chain(compute_at(CHAIN, "twice", "shifted", loop))


@pytest.mark.parametrize("loop", ["batch", "row_outer", "row_inner"])
@pytest.mark.parametrize("factor", [2, 3, 16])
def test_a_producer_at_tiles_has_their_range(loop, factor):
    is_chain(compute_at(split(CHAIN, "shifted", "row", factor), "twice", "shifted", loop))


@pytest.mark.parametrize("loop", ["batch_row_outer", "batch_row_inner"])
def test_a_producer_at_tiles_of_a_fused_loop_has_the_range_of_the_maps(loop):
    tiled = split(fuse(CHAIN, "shifted", "batch", "row"), "shifted", "batch_row", 4)
    placed = compute_at(tiled, "twice", "shifted", loop)
    is_chain(placed)
    if loop == "batch_row_outer":
        assert "select(batch == fused_outer" in str(placed)


def test_compute_at_refuses():
    refused("y cannot be computed at a loop, since it is an output of softmax", compute_at, SOFTMAX, "y", "z", "head")
    refused("top cannot be computed at a loop of z, since e reads it too: keep it apart", compute_at,
            SOFTMAX, "top", "z", "head")
    refused("e cannot be computed at a loop of y, since z reads it too: keep it apart", compute_at, SOFTMAX, "e", "y",
            "head")
    refused("z cannot be computed at loop col of y: loop col around does not change what is read, so it would be "
            "computed again: move col inside", compute_at, SOFTMAX, "z", "y", "col")
    refused("z cannot be computed at a loop, since it is scheduled", compute_at, split(SOFTMAX, "z", "row", 2), "z",
            "y", "head")
    refused("z cannot be computed at a loop, since it is scheduled", compute_at, parallel(SOFTMAX, "z", "row"), "z",
            "y", "head")
    refused("e cannot be computed at loop col of z, which is vectorised or in a reduction", compute_at, SOFTMAX, "e",
            "z", "col")


def test_a_dimension_with_another_meaning_is_refused():
    norms = compute("norms", token, sum_over({inner: 3}, x[batch, row, inner]))
    pairs = compute("pairs", {**token, col: lengths(batch)}, norms[batch, row] + real(0.0))
    others = compute("others", {**token, col: lengths(batch)}, norms[batch, col] + real(0.0))
    assert "norms" in str(compute_at(program("p", [norms, pairs]), "norms", "pairs", "row"))
    moved = reorder(program("p", [norms, others]), "others", ("col", "row"))
    refused("norms cannot be computed at loop row of others: loop row around does not change what is read",
            compute_at, moved, "norms", "others", "row")
    refused("norms cannot be computed at a loop of others: its dimension row has another meaning there: give it "
            r"another name in compute\(\)", compute_at, moved, "norms", "others", "col")


def test_a_padded_or_vectorised_consumer_is_refused():
    stored = CHAIN
    for tensor in ("x", "twice", "shifted"):
        stored = pad_storage(stored, tensor, {row: 4})
    refused("twice cannot be computed at a loop of shifted, whose loop row is padded: keep it apart", compute_at,
            pad_loop(stored, "shifted", row, 4), "twice", "shifted", "row")
    placed = compute_at(stored, "twice", "shifted", "row")
    refused("shifted: loop row cannot be padded, since twice is computed in the nest: pad before compute_at", pad_loop,
            placed, "shifted", row, 4)


def test_loops_do_not_cross_an_attached_nest():
    placed = compute_at(CHAIN, "twice", "shifted", "row")
    refused("shifted: loop inner cannot cross loop row, at which twice is computed: reorder before compute_at", reorder,
            placed, "shifted", ("inner", "row"))
    refused("twice: loop inner cannot be parallel, since twice is computed at a loop of shifted: make a loop of "
            "shifted parallel", parallel, placed, "twice", "inner")
    at_batch = compute_at(CHAIN, "twice", "shifted", "batch")
    refused("shifted: loop batch cannot be fused, since twice is computed at it: fuse before compute_at", fuse,
    at_batch,
            "shifted", "batch", "row")


def test_horizontal_fusion_runs_parts_concurrently(golden):
    halves = split_operation(CASES["scaled"].program, "y", row, multiple=4)
    for part in ("y_main", "y_rest"):
        halves = parallel(halves, part, "batch")
    together = hfuse(halves, ["y_main", "y_rest"])
    golden("ragged/hfuse.txt", str(together))
    assert len(together.launches) == 1
    refused("y_main: loop row cannot be shared by the threads of a block, since y_main runs concurrently with others",
            bind_threads, together, "y_main", "row")
    refused("y_main: loop inner cannot be outermost, since y_main runs concurrently with others", reorder, together,
            "y_main", ("inner", "batch", "row"))
    of = Structure({lengths: [5, 0, 2, 9]}, InterpretedLibrary)
    inputs = operands(together, of, seed=1)
    assert_close(interpreted(together, of, x=inputs["x"].data)["y"],
                 expected(CASES["scaled"], of, inputs)["y"], terms=2, scale=8.0)


def test_horizontal_fusion_refuses():
    halves = split_operation(CASES["values"].program, "o", col, multiple=4)
    refused("o_main cannot run concurrently with others: its outermost loop batch is not parallel: make it so", hfuse,
    halves,
            ["o_main", "o_rest"])
    for part in ("o_main", "o_rest"):
        halves = parallel(halves, part, "batch")
    refused("o_main and o_rest cannot run concurrently: o_main is a part of the reduction of o", hfuse, halves,
            ["o_main", "o_rest"])
    chain = parallel(parallel(CHAIN, "twice", "batch"), "shifted", "batch")
    refused("twice and shifted cannot run concurrently: shifted reads twice", hfuse, chain, ["twice", "shifted"])
    refused("operations shifted, twice are not separate launches that follow each other", hfuse, chain,
            ["shifted", "twice"])
    refused("horizontal fusion of twice: name at least two operations", hfuse, chain, ["twice"])


def test_a_producer_that_one_reader_reads_whole():
    square = Tensor("x", {**token, col: lengths(batch)})
    doubled = compute("doubled", {**token, col: lengths(batch)}, square[batch, row, col] * real(2.0))
    earlier = where(less(col, row + 1), doubled[batch, row, row - col], real(0.0))
    y = compute("y", token, sum_over({col: lengths(batch)}, doubled[batch, row, col] + earlier))
    scheduled = compute_at(program("p", [doubled, y]), "doubled", "y", "row", local=True)
    of = Structure({lengths: [4, 0, 3]}, InterpretedLibrary)
    inputs = operands(scheduled, of, seed=1)
    found = RaggedTensor(scheduled.tensors()["y"], of, interpreted(scheduled, of, x=inputs["x"].data)["y"])
    for number, length in enumerate([4, 0, 3]):
        values = 2.0 * inputs["x"].slice(number)[:length].astype(float)
        assert_close(found.slice(number)[:length], values.sum(1) + np.tril(values).sum(1), terms=8, scale=8.0)
    halves = [compute("y", token, sum_over({col: count}, doubled[batch, row, col] + doubled[batch, row, row]))
              for count in (lengths(batch), row + 1)]
    compute_at(program("p", [doubled, halves[0]]), "doubled", "y", "row", local=True)
    refused("differ in their ranges", compute_at, program("p", [doubled, halves[1]]), "doubled", "y", "row", local=True)
