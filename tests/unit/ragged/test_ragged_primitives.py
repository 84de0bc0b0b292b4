"""Effects of each primitive on the loops, and refusals."""

import pytest
from ragged_cases import CASES, batch, col, inner, row

from sparloom.errors import IllegalSchedule
from sparloom.ragged import (
    bind_threads,
    compute_at,
    fuse,
    hfuse,
    inline,
    pad_loop,
    pad_storage,
    parallel,
    remap,
    reorder,
    split,
    split_operation,
    unroll,
    vectorise,
)

SCALED, SCORES, VALUES, CAUSAL = (CASES[name].program for name in ("scaled", "scores", "values", "causal"))
ITEMS, SOFTMAX, PROJECTION = (CASES[name].program for name in ("items", "softmax", "projection"))


def loops(program, nest):
    """Heads of the loops and definitions of a nest, as printed."""
    text = str(program).split(f"launch {nest}:\n")[1].split("launch ")[0]
    return [line.strip() for line in text.splitlines() if line.strip()]


def refused(message, step, *arguments, **options):
    with pytest.raises(IllegalSchedule, match=message):
        step(*arguments, **options)


def test_split_leaves_the_last_tile_short():
    assert loops(split(SCALED, "y", "row", 4), "y") == [
        "for batch in 0 .. batches():",
        "for row_outer in 0 .. (lengths(batch) + 3) // 4:",
        "for row_inner in 0 .. min(4, lengths(batch) - row_outer * 4):",
        "row = row_outer * 4 + row_inner",
        "for inner in 0 .. 3:",
        "y[batch, row, inner] = x[batch, row, inner] * 2.0 + f32(row)",
    ]


def test_split_of_padded_and_constant_loops_is_exact():
    padded = pad_loop(pad_storage(pad_storage(SCALED, "y", {row: 8}), "x", {row: 8}), "y", row, 8)
    assert loops(split(padded, "y", "row", 4), "y")[1:3] == [
        "for row_outer in 0 .. (lengths(batch) + 7) // 8 * 2:", "for row_inner in 0 .. 4:"]
    assert loops(split(SCALED, "y", "inner", 3), "y")[2:4] == [
        "for inner_outer in 0 .. 1:", "for inner_inner in 0 .. 3:"]


def test_split_of_a_kind_of_loop():
    lines = loops(split(parallel(SCALED, "y", "batch"), "y", "batch", 2), "y")
    assert lines[:2] == ["parallel for batch_outer in 0 .. (batches() + 1) // 2:",
                         "for batch_inner in 0 .. min(2, batches() - batch_outer * 2):"]
    assert "simd for inner_inner in 0 .. min(2, 3 - inner_outer * 2):" in loops(
        split(vectorise(SCALED, "y", "inner"), "y", "inner", 2), "y")


def test_split_refuses_invalid_factors_and_unknown_loops():
    refused("y: loop row cannot be split into tiles of 0: use a positive int", split, SCALED, "y", "row", 0)
    refused("y has no loop col; there are: batch, row, inner", split, SCALED, "y", "col", 2)
    refused("program scaled has no operation z; there are: y", split, SCALED, "z", "row", 2)


def test_reorder_keeps_a_vloop_inside():
    assert [line.split()[1] for line in loops(reorder(SCALED, "y", ("inner", "row")), "y")[:3]] == [
        "batch", "inner", "row"]
    refused("y: vloop row cannot stand outside of loop batch, on which its extent depends: keep batch outside, or fuse "
            "the two", reorder, SCALED, "y", ("row", "batch"))
    refused("s: vloop col cannot stand outside of loop row, on which its extent depends", reorder, CAUSAL, "s",
            ("col", "row"))
    refused("y: order row, row names a loop twice", reorder, SCALED, "y", ("row", "row"))


def test_reorder_sees_through_split_loops():
    tiled = split(split(SCORES, "s", "row", 2), "s", "col", 2)
    order = ("row_outer", "col_outer", "head", "row_inner", "col_inner")
    assert [line.split()[1] for line in loops(reorder(tiled, "s", order), "s") if line.startswith("for")][1:6] == list(
        order)
    refused("vloop row_inner cannot stand outside of loop row_outer", reorder, tiled, "s", ("row_inner", "row_outer"))


def test_fuse_a_vloop_with_the_loop_that_it_depends_on():
    assert loops(fuse(SCALED, "y", "batch", "row"), "y")[:3] == [
        "for batch_row in 0 .. offsets<lengths(x0)>(batches()):",
        "batch = fused_outer<batches(), lengths(x0)>(batch_row)",
        "row = fused_inner<batches(), lengths(x0)>(batch_row)",
    ]


def test_fuse_of_loops_of_one_length_divides():
    assert loops(fuse(SCORES, "s", "row", "head"), "s")[1:4] == [
        "for row_head in 0 .. lengths(batch) * 2:", "row = row_head // 2", "head = row_head % 2"]


def test_fuse_of_three_loops_goes_from_outside():
    tiled = split(SCORES, "s", "row", 2)
    refused("s: loops row_outer and row_inner cannot be fused, since their extents depend on batch: fuse batch and "
            "row_outer first", fuse, tiled, "s", "row_outer", "row_inner")
    once = fuse(tiled, "s", "batch", "row_outer")
    assert loops(fuse(once, "s", "batch_row_outer", "row_inner"), "s")[0].startswith("for batch_row_outer_row_inner in")


def test_fuse_refuses():
    refused("y: loop inner is not directly inside of batch in batch, row, inner: reorder them first", fuse, SCALED, "y",
            "batch", "inner")
    refused("s: loops col and inner cannot be fused, since one is of the result and one of the reduction", fuse, SCORES,
            "s", "col", "inner")
    refused("y: loop batch is parallel: fuse before that", fuse, parallel(SCALED, "y", "batch"), "y", "batch", "row")


def test_loop_padding_needs_as_much_storage_padding():
    refused("y accesses y, dimension row, at row, whose loops are padded to multiples of 4, but its storage is padded "
            "to multiples of 1: pad the storage to a multiple of 4 first", pad_loop, SCALED, "y", row, 4)
    stored = pad_storage(pad_storage(SCALED, "x", {row: 6}), "y", {row: 4})
    refused("y accesses x, dimension row, at row, whose loops are padded to multiples of 4, but its storage is padded "
            "to multiples of 6", pad_loop, stored, "y", row, 4)
    assert loops(pad_loop(stored, "y", row, 2), "y")[1] == "for row in 0 .. (lengths(batch) + 1) // 2 * 2:"
    refused("pad the storage to a multiple of 2 first", pad_storage, pad_loop(stored, "y", row, 2), "x", {row: 3})


def test_loop_padding_refuses():
    refused("y: loop batch cannot be padded, since length function lengths has no entry beyond its end: pad another "
            "loop", pad_loop, pad_storage(PROJECTION, "w", {inner: 2}), "y", batch, 2)
    refused("y: loop row cannot be padded to multiples of 0: use a positive int", pad_loop, SCALED, "y", row, 0)
    refused("y: loop row_outer is no longer a whole dimension: pad before you change it", pad_loop, split(
        SCALED, "y", "row", 2), "y", type(row)("row_outer"), 2)
    refused("m: loop row cannot be padded, since length function widths has no entry beyond its end", pad_loop, ITEMS,
            "m", row, 2)


def test_padding_of_a_loop_that_another_depends_on_without_a_length_function():
    padded = pad_storage(CAUSAL, "s", {row: 4, col: 4})
    for tensor in ("q", "k"):
        padded = pad_storage(padded, tensor, {row: 4})
    both = pad_loop(pad_loop(padded, "s", row, 4), "s", col, 4)
    assert loops(both, "s")[3] == "for col in 0 .. (row + 4) // 4 * 4:"
    refused("k, dimension row, at col, whose loops are padded", pad_storage, both, "k", {row: 2})


def test_operation_splitting():
    halves = split_operation(SCALED, "y", row, multiple=4)
    assert loops(halves, "y_main")[1] == "for row in 0 .. lengths(batch) // 4 * 4:"
    assert loops(halves, "y_rest")[1:3] == ["for row_rest in 0 .. lengths(batch) - lengths(batch) // 4 * 4:",
                                            "row = row_rest + lengths(batch) // 4 * 4"]
    assert loops(split_operation(SCALED, "y", row, point=2), "y_main")[1] == "for row in 0 .. min(2, lengths(batch)):"
    refused("y_main: loop row is no longer a whole dimension: split the operation before you change the loop",
    split_operation,
            halves, "y_main", row, multiple=2)
    refused("y: give either the multiple or the point at which to split row", split_operation, SCALED, "y", row)
    refused("y: loop row cannot be split at multiples of 0", split_operation, SCALED, "y", row, multiple=0)
    refused("y: loop row cannot be split at inner: use a point of at least 0 over loops outside", split_operation,
            SCALED, "y", row, point=inner)


def test_operation_splitting_of_a_reduction():
    halves = split_operation(VALUES, "o", col, multiple=4)
    assert loops(halves, "o_main")[-1].endswith("(not finished)")
    assert loops(halves, "o_rest")[-1].endswith("(on top of what is stored)")


def test_the_value_around_a_reduction_is_computed_after_it():
    assert loops(PROJECTION, "y")[-2:] == ["y[batch, row, out] += x[batch, row, inner] * w[inner, out]",
                                           "y[batch, row, out] = max(y[batch, row, out] + bias[out], 0.0)"]


def test_remap_runs_the_most_work_first():
    assert loops(remap(parallel(SCORES, "s", "batch"), "s", "batch"), "s")[:2] == [
        "parallel for batch_th in 0 .. batches():", "batch = order<lengths(x0) * lengths(x0)>(batch_th)"]
    refused("y: loop row cannot be remapped, since its extent depends on batch: fuse the two first", remap, SCALED, "y",
            "row")
    refused("y: loop batch cannot be remapped, since its work depends on row", remap, SCALED, "y", "batch", row + 1)


def test_a_parallel_loop_is_outside_reductions_and_the_only_one():
    refused("o: parallel loop col cannot stand inside the reduction col: move it outside", parallel, VALUES, "o", "col")
    refused("s: loop row cannot be parallel besides the parallel loop batch of s: fuse the two, or make one serial",
            parallel, parallel(SCORES, "s", "batch"), "s", "row")
    refused("y: parallel loop batch in chunks of 0: use at least 1", parallel, SCALED, "y", "batch", chunk=0)
    chunked = split(parallel(SCALED, "y", "batch", chunk=4), "y", "batch", 2)
    assert loops(chunked, "y")[0] == "parallel for batch_outer in 0 .. (batches() + 1) // 2 chunk 4:"
    refused("y: loop batch is already parallel: split it to have both", vectorise, parallel(SCALED, "y", "batch"), "y",
            "batch")


def test_threads_of_a_block_share_a_loop_directly_in_a_parallel_one():
    tiled = parallel(split(fuse(SCALED, "y", "batch", "row"), "y", "batch_row", 4), "y", "batch_row_outer")
    bound = bind_threads(tiled, "y", "batch_row_inner")
    assert "shared for batch_row_inner in 0 .." in loops(bound, "y")[1]
    assert loops(split(bound, "y", "batch_row_inner", 2), "y")[1].startswith("shared for batch_row_inner_outer in")
    message = "loop {} cannot be shared by the threads of a block, since it is not a loop of the result directly in"
    refused(message.format("inner"), bind_threads, tiled, "y", "inner")
    refused(message.format("batch"), bind_threads, SCALED, "y", "batch")
    refused(message.format("batch_row_inner"), split, bound, "y", "batch_row_outer", 2)
    refused(message.format("batch_row_inner"), reorder, bound, "y", ("inner", "batch_row_inner"))
    halves = split_operation(SCALED, "y", row, multiple=4)
    for part, loop in (("y_main", "row"), ("y_rest", "row_rest")):
        halves = bind_threads(parallel(halves, part, "batch"), part, loop)
    refused("y_main cannot run concurrently with others, since the threads of a block share its loop row",
            hfuse, halves, ["y_main", "y_rest"])
    placed = compute_at(SOFTMAX, "z", "y", "row")
    refused("y: loop head cannot be shared by the threads of a block, since z is computed at loop row: compute it at "
            "head",
            bind_threads, parallel(placed, "y", "row"), "y", "head")


def test_the_innermost_loop_is_vectorised():
    refused("y: simd loop row cannot stand outside of loop inner: only the innermost loop is vectorised", vectorise,
            SCALED, "y", "row")
    assert "simd for col in 0 .. lengths(batch) (reduction):" in loops(vectorise(SOFTMAX, "top", "col"), "top")
    inside = reorder(VALUES, "o", ("col", "inner"))
    split_twice = reorder(split(inside, "o", "col", 2), "o", ("col_outer", "inner", "col_inner"))
    refused("o: simd loop col_inner of the reduction cannot stand inside loop inner: move inner out of the reduction",
            vectorise, split_twice, "o", "col_inner")


def test_unrolled_loops_have_constant_extents():
    refused("y: loop row has a variable number of iterations; unrolled loops have a constant number up to 64: split it",
            unroll, SCALED, "y", "row")
    refused("y: loop row_inner has up to 4 iterations; unrolled loops have a constant number", unroll, split(
        SCALED, "y", "row", 4), "y", "row_inner")
    assert "unrolled for inner in 0 .. 3:" in loops(unroll(SCALED, "y", "inner"), "y")


def test_inline_replaces_reads_by_the_definition():
    shorter = inline(SOFTMAX, "e")
    assert "e[" not in str(shorter)
    assert loops(shorter, "z")[-1] == ("z[batch, row, head] += exp(p[batch, row, head, col] - "
                                       "top[batch, row, head])")
    refused("z cannot be inlined, since it is a reduction: use compute_at", inline, SOFTMAX, "z")
    refused("y cannot be inlined, since it is an output of softmax", inline, SOFTMAX, "y")
    refused("e_main cannot be inlined in parts, or after it is fused or attached: inline it first",
            inline, split_operation(SOFTMAX, "e", row, multiple=2), "e_main")
