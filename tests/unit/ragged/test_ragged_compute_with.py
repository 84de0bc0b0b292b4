"""Operations in the loops of others: compute_with, decompose_reduction, narrow."""

import re

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, SIZE, batch, batches, col, expected, inner, lengths, operands, query, row, which

from sparloom import ragged
from sparloom.errors import IllegalSchedule
from sparloom.ir import pretty
from sparloom.ops import assert_close

CASE = CASES["gradients"]
TILE = 4
token = {batch: batches(), row: lengths(batch)}
x = ragged.Tensor("x", {**token, inner: 3})
twice = ragged.compute("twice", {**token, inner: 3}, x[batch, row, inner] * ragged.real(2.0))
total = ragged.compute("total", token, ragged.sum_over({inner: 3}, x[batch, row, inner]))
square = ragged.compute("square", {**token, inner: 3}, x[batch, row, inner] * x[batch, row, inner])


def refused(message, step, *arguments, **options):
    with pytest.raises(IllegalSchedule, match=re.escape(message)):
        step(*arguments, **options)


def results(scheduled, entries):
    of = ragged.Structure({lengths: entries}, InterpretedLibrary)
    inputs = operands(scheduled, of, seed=3)
    found = ragged.interpreted(scheduled, of, **{name: value.data for name, value in inputs.items()})
    return of, inputs, found


def computes_the_case(scheduled):
    for values in ([], [0], [5, 0, 2, 9]):
        of, inputs, found = results(scheduled, values)
        packed = ragged.RaggedTensor(scheduled.tensors()["g"], of, found["g"]).to_packed()[0]
        assert_close(packed.reshape(-1), expected(CASE, of, inputs)["g"], terms=16, scale=8.0)


def triangles_of_tiles():
    """Both gradients of masked scores, which are computed up to the end of a tile of rows."""
    def seen(of):
        return ragged.minimum(lengths(batch), (of // TILE + 1) * TILE)

    q, k = ragged.Tensor("q", {**token, inner: SIZE}), ragged.Tensor("k", {**token, inner: SIZE})
    score = q[batch, row, 0] * k[batch, col, 0]
    s = ragged.compute("s", {**token, col: seen(row)}, ragged.where(ragged.less(col, row + 1), score, ragged.real(0.0)))
    g = ragged.Tensor("g", {batch: batches(), row: lengths(batch), which: 2, inner: SIZE})
    return ragged.program("triangles", [
        s,
        ragged.part("by_row", g, {which: 0},
                    ragged.sum_over({col: seen(row)}, s[batch, row, col] * k[batch, col, inner])),
        ragged.part("by_col", g, {which: 1}, ragged.sum_over({query: lengths(batch)}, ragged.where(
            ragged.less(row, seen(query)), s[batch, query, row] * q[batch, query, inner], ragged.real(0.0))))], ["g"])


def in_one_pass(prog):
    """Schedule both gradients by tiles of rows; the scores of a tile are computed once, in a local array."""
    prog = ragged.split(prog, "by_row", "row", TILE)
    prog = ragged.split(ragged.decompose_reduction(prog, "by_col"), "by_col_rest", "query", TILE)
    prog = ragged.reorder(prog, "by_col_rest", ("batch", "query_outer", "row", "inner", "query_inner"))
    prog = ragged.narrow(prog, "by_col_rest", row)
    prog = ragged.compute_with(prog, "by_col_start", "by_row", "batch")
    prog = ragged.compute_with(prog, "by_col_rest", "by_row", "row_outer")
    return ragged.parallel(ragged.compute_at(prog, "s", "by_row", "row_outer", local=True), "by_row", "batch")


def test_two_gradients_in_one_pass(golden):
    prog = in_one_pass(triangles_of_tiles())
    assert [launch.name for launch in prog.launches] == ["by_row"]
    for lengths_given in ([], [0], [5, 0, 2, 9]):
        _, inputs, found = results(prog, lengths_given)
        q, k = (np.split(inputs[name].data.reshape(-1, SIZE).astype(float), np.cumsum(lengths_given)[:-1].astype(int))
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
    prog = ragged.reorder(ragged.decompose_reduction(CASE.program, "by_col"), "by_col_rest", ("batch", "query", "row"))
    prog = ragged.split(ragged.narrow(prog, "by_col_rest", row), "by_col_rest", "query", factor)
    prog = ragged.compute_with(ragged.split(prog, "by_row", "row", factor), "by_col_start", "by_row", "batch")
    computes_the_case(ragged.compute_with(prog, "by_col_rest", "by_row", "row_outer"))


def test_independent_operations_share_loops():
    both = ragged.compute_with(ragged.program("p", [twice, square], [twice, square]), "twice", "square", "row")
    assert [launch.name for launch in both.launches] == ["square"]
    assert "for inner_at in 0 .. 3:" in str(both)
    _, inputs, found = results(ragged.vectorise(both, "twice", "inner_at"), [3, 0, 2])
    assert_close(found["twice"], 2.0 * inputs["x"].data, terms=1)
    assert_close(found["square"], inputs["x"].data.astype(float) ** 2, terms=1)


def test_compute_with_requires_independent_operations():
    reader = ragged.compute("reader", {**token, inner: 3}, twice[batch, row, inner])
    for nests in (("twice", "reader"), ("reader", "twice")):
        refused(f"{nests[0]} cannot be computed with {nests[1]}: reader reads twice: use compute_at",
                ragged.compute_with,
                ragged.program("p", [twice, reader]), *nests, "row")


def test_shared_loops_have_equal_extents():
    prog = ragged.program("p", [twice, square], [twice, square])
    refused("twice cannot be computed with square: its loop row is not the loop row_outer of square: split, fuse and "
            "reorder both in the same way",
            ragged.compute_with, ragged.split(prog, "square", "row", 2), "twice", "square", "row_outer")
    refused("its loop row is not the loop inner of square", ragged.compute_with, ragged.reorder(
        prog, "square", ("batch", "inner", "row")), "twice", "square", "inner")
    short = ragged.program("p", [ragged.compute("one", {batch: batches()}, ragged.real(1.0)), square],
                           ["one", "square"])
    refused("one cannot be computed with square: its loop (none) is not the loop row", ragged.compute_with, short,
            "one",
            "square", "row")


def test_shared_names_have_the_same_definition():
    turned = ragged.compute("turned", {batch: batches(), col: lengths(batch), row: 3}, x[batch, col, row])
    refused("turned cannot be computed with square: row has another meaning there: give it another name",
            ragged.compute_with, ragged.program("p", [square, turned], [square, turned]), "turned", "square", "row")


def test_launches_are_neighbours():
    inputs = ragged.program("p", [twice, total, square], [twice, total, square])
    refused("twice cannot be computed with square: they are not separate launches that follow each other in twice, "
            "total, square", ragged.compute_with, inputs, "twice", "square", "row")
    refused("which is vectorised or in a reduction: use a loop outside of it", ragged.compute_with, inputs, "twice",
            "total",
            "inner")
    kept = ragged.program("p",
                          [square, ragged.compute("y", token, ragged.sum_over({inner: 3}, square[batch, row, inner])),
                           total],
                   ["y", "total"])
    refused("y cannot be computed with total, since something is computed in its loops", ragged.compute_with,
            ragged.compute_at(kept, "square", "y", "row"), "y", "total", "row")


def tiles_of_queries(prog, nest):
    """Schedule the rows of by_row and the queries of the other operation in the same tiles."""
    prog = ragged.split(ragged.split(prog, "by_row", "row", 2), nest, "query", 2)
    return ragged.reorder(prog, nest, ("batch", "query_outer", "row", "head", "inner", "query_inner"))


def test_a_reduction_inside_another_must_have_begun():
    refused("by_col cannot be computed with by_row at loop row_outer: its loop query_outer is of its reduction, which "
            "begins in it, or is not all of its value: decompose_reduction first", ragged.compute_with,
            tiles_of_queries(CASE.program, "by_col"), "by_col", "by_row", "row_outer")


def test_loops_over_which_a_nest_accumulates_are_serial():
    prog = ragged.compute_with(ragged.decompose_reduction(CASE.program, "by_col"), "by_col_start", "by_row", "batch")
    prog = ragged.compute_with(tiles_of_queries(prog, "by_col_rest"), "by_col_rest", "by_row", "row_outer")
    refused("by_row: loop row_outer cannot be parallel, since by_col_rest, computed in it, accumulates over its "
            "iterations: leave it serial", ragged.parallel, prog, "by_row", "row_outer")
    computes_the_case(ragged.parallel(prog, "by_row", "batch"))


def test_a_reduction_continues_where_it_began():
    prog = ragged.decompose_reduction(CASE.program, "by_col")
    started = ragged.compute_with(prog, "by_col_start", "by_row", "row")
    refused("by_col_rest cannot be computed with by_row: it continues the reduction of by_col_start: compute that "
            "with by_row first, at a loop outside of the reduction, which decides about the same elements in both",
            ragged.compute_with, started, "by_col_rest", "by_row", "batch")
    computes_the_case(ragged.compute_with(started, "by_col_rest", "by_row", "row"))
    alike = ragged.split(ragged.split(prog, "by_col_start", "row", 2), "by_row", "row", 2)
    alike = ragged.compute_with(alike, "by_col_start", "by_row", "row_outer")
    alike = ragged.reorder(ragged.split(alike, "by_col_rest", "query", 2), "by_col_rest", (
        "batch", "query_outer", "row", "head", "inner", "query_inner"))
    refused("it continues the reduction of by_col_start", ragged.compute_with, alike, "by_col_rest", "by_row",
            "row_outer")


def test_parts_of_a_reduction_do_not_run_concurrently():
    prog = ragged.compute_with(ragged.decompose_reduction(CASE.program, "by_col"), "by_col_start", "by_row", "batch")
    prog = ragged.parallel(ragged.parallel(prog, "by_row", "batch"), "by_col_rest", "batch")
    refused("by_row and by_col_rest cannot run concurrently: by_col_rest is a part of the reduction of g",
            ragged.hfuse, prog,
            ["by_row", "by_col_rest"])


def test_only_whole_reductions_are_decomposed():
    half = ragged.compute("half", token, ragged.sum_over({inner: 3}, x[batch, row, inner]) * ragged.real(0.5))
    for inputs in (half, twice):
        refused(f"{inputs.name} cannot be decomposed, since its value is not a reduction alone: move the rest to a "
                f"separate operation", ragged.decompose_reduction, ragged.program("p", [inputs]), inputs.name)
    refused("total cannot be decomposed, since it is scheduled, or in parts: decompose first",
            ragged.decompose_reduction,
            ragged.split(ragged.program("p", [total]), "total", "row", 2), "total")


def test_a_decomposed_maximum_begins_with_minus_infinity():
    top = ragged.compute("top", token, ragged.max_over({inner: 3}, x[batch, row, inner]))
    prog = ragged.decompose_reduction(ragged.program("p", [top]), "top")
    assert [launch.name for launch in prog.launches] == ["top_start", "top_rest"]
    _, inputs, found = results(prog, [2, 1])
    assert_close(found["top"], inputs["x"].data.reshape(3, 3).max(axis=1).astype(float), terms=1)


def test_narrow_refuses():
    plain, started = CASE.program, ragged.decompose_reduction(CASE.program, "by_col")
    refused("by_row: loop row cannot be narrowed, since the reduced value is not where(less(row, end), value, 0)",
            ragged.narrow, plain, "by_row", row)
    refused("by_col: loop row cannot be narrowed, since the reduction begins or ends in it: decompose_reduction first",
            ragged.narrow, plain, "by_col", row)
    refused("by_col_rest: loop row cannot end at query + 1, which varies with loop query inside of it: move query "
            "outside", ragged.narrow, started, "by_col_rest", row)
    outside = ragged.reorder(started, "by_col_rest", ("batch", "query", "row"))
    computes_the_case(ragged.narrow(outside, "by_col_rest", row))
    refused("by_col_rest: loop row cannot be narrowed, since it is not a whole dimension of the result", ragged.narrow,
            ragged.narrow(outside, "by_col_rest", row), "by_col_rest", row)


def test_loops_of_a_tile_product_are_not_remapped():
    inputs = ragged.offload(CASES["projection"].program, "y", "row", "out", "inner")
    refused("y: loop out cannot be remapped, since it belongs to a tile product, whose elements are evenly spaced: "
            "remap a loop outside of it", ragged.remap, inputs, "y", "out")


def test_a_local_array_varies_with_loops_around_or_inside():
    s, t = (nest.operation for nest in CASES["causal"].program.nests())
    refused("s cannot be local: the extent of col varies with row inside of the array, and the array with batch: store "
            "it whole, or use a loop further inside", ragged.compute_at, ragged.program("p", [s, t]), "s", "t",
            "batch", local=True)
    ragged.compute_at(ragged.program("p", [s, t]), "s", "t", "row", local=True)
