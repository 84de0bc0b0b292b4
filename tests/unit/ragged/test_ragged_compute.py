"""Operations in the loops of others: compute_at, compute_with, hfuse, decompose_reduction, narrow."""

import re

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, SIZE, batch, batches, col, computes, inner, lengths, operands, query, row, which

from sparloom import ragged
from sparloom.errors import IllegalSchedule
from sparloom.ir import pretty
from sparloom.ops import assert_close
from sparloom.ragged import (
    bind_threads,
    compute,
    compute_at,
    compute_with,
    decompose_reduction,
    fuse,
    hfuse,
    narrow,
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

SOFTMAX, CAUSAL, GRADIENTS = (CASES[name].program for name in ("softmax", "causal", "gradients"))
TILE = 4
token = {batch: batches(), row: lengths(batch)}
each = {**token, inner: 3}
x = ragged.Tensor("x", each)
twice = compute("twice", each, x[batch, row, inner] * real(2.0))
shifted = compute("shifted", each, twice[batch, row, inner] + real(1.0))
reader = compute("reader", each, twice[batch, row, inner])
square = compute("square", each, x[batch, row, inner] * x[batch, row, inner])
total = compute("total", token, sum_over({inner: 3}, x[batch, row, inner]))
half = compute("half", token, sum_over({inner: 3}, x[batch, row, inner]) * real(0.5))
one = compute("one", {batch: batches()}, real(1.0))
turned = compute("turned", {batch: batches(), col: lengths(batch), row: 3}, x[batch, col, row])
norms = compute("norms", token, sum_over({inner: 3}, x[batch, row, inner]))
others = compute("others", {**token, col: lengths(batch)}, norms[batch, col] + real(0.0))
CHAIN, BOTH = program("chain", [twice, shifted]), program("p", [twice, square], [twice, square])
STARTED = decompose_reduction(GRADIENTS, "by_col")


def results(scheduled, entries):
    of = ragged.Structure({lengths: entries}, InterpretedLibrary)
    inputs = operands(scheduled, of, seed=3)
    return of, inputs, ragged.interpreted(scheduled, of, **{name: value.data for name, value in inputs.items()})


def is_chain(scheduled):
    for entries in ([], [0], [5, 0, 2, 9]):
        of, inputs, found = results(scheduled, entries)
        packed = ragged.RaggedTensor(scheduled.tensors()["shifted"], of, found["shifted"]).to_packed()[0]
        assert_close(packed, 2.0 * inputs["x"].to_packed()[0].astype(float) + 1, terms=1, scale=4.0)


def test_softmax_in_one_pass_over_rows(golden):
    fused = SOFTMAX
    for name in ("z", "e", "top"):
        fused = compute_at(fused, name, "y", "head")
    fused = parallel(fuse(fused, "y", "batch", "row"), "y", "batch_row")
    assert [launch.name for launch in fused.launches] == ["y"]
    golden("ragged/softmax.txt", str(fused))
    computes("softmax", fused)


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


def test_a_producer_that_one_reader_reads_whole():
    values = ragged.Tensor("x", {**token, col: lengths(batch)})
    doubled = compute("doubled", {**token, col: lengths(batch)}, values[batch, row, col] * real(2.0))
    earlier = where(ragged.less(col, row + 1), doubled[batch, row, row - col], real(0.0))
    y = compute("y", token, sum_over({col: lengths(batch)}, doubled[batch, row, col] + earlier))
    scheduled = compute_at(program("p", [doubled, y]), "doubled", "y", "row", local=True)
    of, inputs, found = results(scheduled, [4, 0, 3])
    found = ragged.RaggedTensor(scheduled.tensors()["y"], of, found["y"])
    for number, length in enumerate([4, 0, 3]):
        own = 2.0 * inputs["x"].slice(number)[:length].astype(float)
        assert_close(found.slice(number)[:length], own.sum(1) + np.tril(own).sum(1), terms=8, scale=8.0)
    halves = [compute("y", token, sum_over({col: count}, doubled[batch, row, col] + doubled[batch, row, row]))
              for count in (lengths(batch), row + 1)]
    compute_at(program("p", [doubled, halves[0]]), "doubled", "y", "row", local=True)
    with pytest.raises(IllegalSchedule, match="differ in their ranges"):
        compute_at(program("p", [doubled, halves[1]]), "doubled", "y", "row", local=True)


def split_case():
    halves = split_operation(CASES["scaled"].program, "y", row, multiple=4)
    return hfuse(parallel(parallel(halves, "y_main", "batch"), "y_rest", "batch"), ["y_main", "y_rest"])


def test_horizontal_fusion_runs_parts_concurrently(golden):
    together = split_case()
    golden("ragged/hfuse.txt", str(together))
    assert len(together.launches) == 1
    computes("scaled", together)


def triangles_of_tiles():
    """Both gradients of masked scores, which are computed up to the end of a tile of rows."""
    def seen(of):
        return ragged.minimum(lengths(batch), (of // TILE + 1) * TILE)

    q, k = ragged.Tensor("q", {**token, inner: SIZE}), ragged.Tensor("k", {**token, inner: SIZE})
    score = q[batch, row, 0] * k[batch, col, 0]
    s = compute("s", {**token, col: seen(row)}, where(ragged.less(col, row + 1), score, real(0.0)))
    g = ragged.Tensor("g", {batch: batches(), row: lengths(batch), which: 2, inner: SIZE})
    return program("triangles", [
        s,
        ragged.part("by_row", g, {which: 0}, sum_over({col: seen(row)}, s[batch, row, col] * k[batch, col, inner])),
        ragged.part("by_col", g, {which: 1}, sum_over({query: lengths(batch)}, where(
            ragged.less(row, seen(query)), s[batch, query, row] * q[batch, query, inner], real(0.0))))], ["g"])


def in_one_pass(prog):
    """Schedule both gradients by tiles of rows; the scores of a tile are computed once, in a local array."""
    prog = split(prog, "by_row", "row", TILE)
    prog = split(decompose_reduction(prog, "by_col"), "by_col_rest", "query", TILE)
    prog = reorder(prog, "by_col_rest", ("batch", "query_outer", "row", "inner", "query_inner"))
    prog = compute_with(narrow(prog, "by_col_rest", row), "by_col_start", "by_row", "batch")
    prog = compute_with(prog, "by_col_rest", "by_row", "row_outer")
    return parallel(compute_at(prog, "s", "by_row", "row_outer", local=True), "by_row", "batch")


def test_two_gradients_in_one_pass(golden):
    prog = in_one_pass(triangles_of_tiles())
    assert [launch.name for launch in prog.launches] == ["by_row"]
    for entries in ([], [0], [5, 0, 2, 9]):
        _, inputs, found = results(prog, entries)
        q, k = (np.split(inputs[name].data.reshape(-1, SIZE).astype(float), np.cumsum(entries)[:-1].astype(int))
                for name in "qk")
        oracle = [np.stack([s @ b, s.T @ a], axis=1) for a, b in zip(q, k, strict=True)
                  for s in [np.outer(a[:, 0], b[:, 0]) * np.tri(len(a))]]
        assert_close(found["g"], np.concatenate([np.empty(0), *(each.reshape(-1) for each in oracle)]), terms=16,
                     scale=8.0)
    golden("ragged/gradients.txt", str(prog))


def test_a_narrowed_sum_is_a_tile_product():
    prog = in_one_pass(triangles_of_tiles())
    for nest in ("by_row", "by_col_rest"):
        prog = ragged.offload(prog, nest, *(loop.name for loop in prog.nest(nest).loops[-3:]))
    text = pretty(ragged.lower(prog)[0].kernel)
    assert text.count("g[") == 3  # the start, and two products
    assert "(min(i64(lengths_entry_1), row_outer * 4 + 4) x 3, depth min(4, " in text


@pytest.mark.parametrize("factor", [1, 3, 4, 16])
def test_gradients_of_the_case_share_tiles(factor):
    prog = split(narrow(reorder(STARTED, "by_col_rest", ("batch", "query", "row")), "by_col_rest", row), "by_col_rest",
                 "query", factor)
    prog = compute_with(split(prog, "by_row", "row", factor), "by_col_start", "by_row", "batch")
    computes("gradients", compute_with(prog, "by_col_rest", "by_row", "row_outer"))


def test_independent_operations_share_loops():
    both = compute_with(BOTH, "twice", "square", "row")
    assert [launch.name for launch in both.launches] == ["square"]
    assert "for inner_at in 0 .. 3:" in str(both)
    _, inputs, found = results(ragged.vectorise(both, "twice", "inner_at"), [3, 0, 2])
    assert_close(found["twice"], 2.0 * inputs["x"].data, terms=1)
    assert_close(found["square"], inputs["x"].data.astype(float) ** 2, terms=1)


def tiles_of_queries(prog, nest):
    """Schedule the rows of by_row and the queries of the other operation in the same tiles."""
    prog = split(split(prog, "by_row", "row", 2), nest, "query", 2)
    return reorder(prog, nest, ("batch", "query_outer", "row", "head", "inner", "query_inner"))


ACCUMULATING = compute_with(tiles_of_queries(compute_with(STARTED, "by_col_start", "by_row", "batch"), "by_col_rest"),
                            "by_col_rest", "by_row", "row_outer")
IN_ROWS = compute_with(STARTED, "by_col_start", "by_row", "row")
OUTSIDE = reorder(STARTED, "by_col_rest", ("batch", "query", "row"))


@pytest.mark.parametrize("scheduled", [
    parallel(ACCUMULATING, "by_row", "batch"), compute_with(IN_ROWS, "by_col_rest", "by_row", "row"),
    narrow(OUTSIDE, "by_col_rest", row)])
def test_reductions_that_continue_compute_the_case(scheduled):
    computes("gradients", scheduled)


def test_a_decomposed_maximum_begins_with_minus_infinity():
    top = compute("top", token, ragged.max_over({inner: 3}, x[batch, row, inner]))
    prog = decompose_reduction(program("p", [top]), "top")
    assert [launch.name for launch in prog.launches] == ["top_start", "top_rest"]
    _, inputs, found = results(prog, [2, 1])
    assert_close(found["top"], inputs["x"].data.reshape(3, 3).max(axis=1).astype(float), terms=1)


STORED = pad_storage(pad_storage(pad_storage(CHAIN, "x", {row: 4}), "twice", {row: 4}), "shifted", {row: 4})
AT_ROW = compute_at(CHAIN, "twice", "shifted", "row")
VALUES = split_operation(CASES["values"].program, "o", col, multiple=4)
PARALLEL_VALUES = parallel(parallel(VALUES, "o_main", "batch"), "o_rest", "batch")
PARALLEL_CHAIN = parallel(parallel(CHAIN, "twice", "batch"), "shifted", "batch")
MOVED = reorder(program("p", [norms, others]), "others", ("col", "row"))
THREE = program("p", [twice, total, square], [twice, total, square])
SUMMED = program("p", [square, compute("y", token, sum_over({inner: 3}, square[batch, row, inner])), total],
                 ["y", "total"])
ALIKE = compute_with(split(split(STARTED, "by_col_start", "row", 2), "by_row", "row", 2), "by_col_start", "by_row",
                     "row_outer")
ALIKE = reorder(split(ALIKE, "by_col_rest", "query", 2), "by_col_rest", (
    "batch", "query_outer", "row", "head", "inner", "query_inner"))


@pytest.mark.parametrize(("message", "step"), [
    ("y cannot be computed at a loop, since it is an output of softmax", lambda: compute_at(SOFTMAX, "y", "z", "head")),
    ("top cannot be computed at a loop of z, since e reads it too: keep it apart",
     lambda: compute_at(SOFTMAX, "top", "z", "head")),
    ("e cannot be computed at a loop of y, since z reads it too: keep it apart",
     lambda: compute_at(SOFTMAX, "e", "y", "head")),
    ("z cannot be computed at loop col of y: loop col around does not change what is read, so it would be computed "
     "again: move col inside", lambda: compute_at(SOFTMAX, "z", "y", "col")),
    ("z cannot be computed at a loop, since it is scheduled",
     lambda: compute_at(split(SOFTMAX, "z", "row", 2), "z", "y", "head")),
    ("z cannot be computed at a loop, since it is scheduled",
     lambda: compute_at(parallel(SOFTMAX, "z", "row"), "z", "y", "head")),
    ("e cannot be computed at loop col of z, which is vectorised or in a reduction",
     lambda: compute_at(SOFTMAX, "e", "z", "col")),
    ("norms cannot be computed at loop row of others: loop row around does not change what is read",
     lambda: compute_at(MOVED, "norms", "others", "row")),
    ("norms cannot be computed at a loop of others: its dimension row has another meaning there: give it another name "
     "in compute()", lambda: compute_at(MOVED, "norms", "others", "col")),
    ("twice cannot be computed at a loop of shifted, whose loop row is padded: keep it apart",
     lambda: compute_at(pad_loop(STORED, "shifted", row, 4), "twice", "shifted", "row")),
    ("shifted: loop row cannot be padded, since twice is computed in the nest: pad before compute_at",
     lambda: pad_loop(compute_at(STORED, "twice", "shifted", "row"), "shifted", row, 4)),
    ("shifted: loop inner cannot cross loop row, at which twice is computed: reorder before compute_at",
     lambda: reorder(AT_ROW, "shifted", ("inner", "row"))),
    ("twice: loop inner cannot be parallel, since twice is computed at a loop of shifted: make a loop of shifted "
     "parallel", lambda: parallel(AT_ROW, "twice", "inner")),
    ("shifted: loop batch cannot be fused, since twice is computed at it: fuse before compute_at",
     lambda: fuse(compute_at(CHAIN, "twice", "shifted", "batch"), "shifted", "batch", "row")),
    ("s cannot be local: the extent of col varies with row inside of the array, and the array with batch: store it "
     "whole, or use a loop further inside", lambda: compute_at(
         program("p", [nest.operation for nest in CAUSAL.nests()]), "s", "t", "batch", local=True)),
    ("y_main: loop row cannot be shared by the threads of a block, since y_main runs concurrently with others",
     lambda: bind_threads(split_case(), "y_main", "row")),
    ("y_main: loop inner cannot be outermost, since y_main runs concurrently with others",
     lambda: reorder(split_case(), "y_main", ("inner", "batch", "row"))),
    ("o_main cannot run concurrently with others: its outermost loop batch is not parallel: make it so",
     lambda: hfuse(VALUES, ["o_main", "o_rest"])),
    ("o_main and o_rest cannot run concurrently: o_main is a part of the reduction of o",
     lambda: hfuse(PARALLEL_VALUES, ["o_main", "o_rest"])),
    ("twice and shifted cannot run concurrently: shifted reads twice",
     lambda: hfuse(PARALLEL_CHAIN, ["twice", "shifted"])),
    ("operations shifted, twice are not separate launches that follow each other",
     lambda: hfuse(PARALLEL_CHAIN, ["shifted", "twice"])),
    ("horizontal fusion of twice: name at least two operations", lambda: hfuse(PARALLEL_CHAIN, ["twice"])),
    ("by_row and by_col_rest cannot run concurrently: by_col_rest is a part of the reduction of g",
     lambda: hfuse(parallel(parallel(compute_with(STARTED, "by_col_start", "by_row", "batch"), "by_row", "batch"),
                            "by_col_rest", "batch"), ["by_row", "by_col_rest"])),
    *((f"{nests[0]} cannot be computed with {nests[1]}: reader reads twice: use compute_at",
       lambda nests=nests: compute_with(program("p", [twice, reader]), *nests, "row"))
      for nests in (("twice", "reader"), ("reader", "twice"))),
    ("twice cannot be computed with square: its loop row is not the loop row_outer of square: split, fuse and reorder "
     "both in the same way", lambda: compute_with(split(BOTH, "square", "row", 2), "twice", "square", "row_outer")),
    ("its loop row is not the loop inner of square",
     lambda: compute_with(reorder(BOTH, "square", ("batch", "inner", "row")), "twice", "square", "inner")),
    ("one cannot be computed with square: its loop (none) is not the loop row",
     lambda: compute_with(program("p", [one, square], ["one", "square"]), "one", "square", "row")),
    ("turned cannot be computed with square: row has another meaning there: give it another name",
     lambda: compute_with(program("p", [square, turned], [square, turned]), "turned", "square", "row")),
    ("twice cannot be computed with square: they are not separate launches that follow each other in twice, total, "
     "square", lambda: compute_with(THREE, "twice", "square", "row")),
    ("which is vectorised or in a reduction: use a loop outside of it",
     lambda: compute_with(THREE, "twice", "total", "inner")),
    ("y cannot be computed with total, since something is computed in its loops",
     lambda: compute_with(compute_at(SUMMED, "square", "y", "row"), "y", "total", "row")),
    ("by_col cannot be computed with by_row at loop row_outer: its loop query_outer is of its reduction, which begins "
     "in it, or is not all of its value: decompose_reduction first",
     lambda: compute_with(tiles_of_queries(GRADIENTS, "by_col"), "by_col", "by_row", "row_outer")),
    ("by_row: loop row_outer cannot be parallel, since by_col_rest, computed in it, accumulates over its iterations: "
     "leave it serial", lambda: parallel(ACCUMULATING, "by_row", "row_outer")),
    ("by_col_rest cannot be computed with by_row: it continues the reduction of by_col_start: compute that with by_row "
     "first, at a loop outside of the reduction, which decides about the same elements in both",
     lambda: compute_with(IN_ROWS, "by_col_rest", "by_row", "batch")),
    ("it continues the reduction of by_col_start", lambda: compute_with(ALIKE, "by_col_rest", "by_row", "row_outer")),
    *((f"{each.name} cannot be decomposed, since its value is not a reduction alone: move the rest to a separate "
       "operation", lambda each=each: decompose_reduction(program("p", [each]), each.name)) for each in (half, twice)),
    ("total cannot be decomposed, since it is scheduled, or in parts: decompose first",
     lambda: decompose_reduction(split(program("p", [total]), "total", "row", 2), "total")),
    ("by_row: loop row cannot be narrowed, since the reduced value is not where(less(row, end), value, 0)",
     lambda: narrow(GRADIENTS, "by_row", row)),
    ("by_col: loop row cannot be narrowed, since the reduction begins or ends in it: decompose_reduction first",
     lambda: narrow(GRADIENTS, "by_col", row)),
    ("by_col_rest: loop row cannot end at query + 1, which varies with loop query inside of it: move query outside",
     lambda: narrow(STARTED, "by_col_rest", row)),
    ("by_col_rest: loop row cannot be narrowed, since it is not a whole dimension of the result",
     lambda: narrow(narrow(OUTSIDE, "by_col_rest", row), "by_col_rest", row)),
])
def test_illegal_placements_are_refused(message, step):
    with pytest.raises(IllegalSchedule, match=re.escape(message)):
        step()
