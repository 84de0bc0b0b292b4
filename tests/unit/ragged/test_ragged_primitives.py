"""Effects of each primitive on the loops, and refusals."""

import pytest
from ragged_cases import CASES, batch, col, inner, row

from sparloom.errors import IllegalSchedule
from sparloom.ragged import (
    Dim,
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


def test_split_leaves_the_last_tile_short():
    assert loops(split(SCALED, "y", "row", 4), "y") == [
        "for batch in 0 .. batches():",
        "for row_outer in 0 .. (lengths(batch) + 3) // 4:",
        "for row_inner in 0 .. min(4, lengths(batch) - row_outer * 4):",
        "row = row_outer * 4 + row_inner",
        "for inner in 0 .. 3:",
        "y[batch, row, inner] = x[batch, row, inner] * 2.0 + f32(row)",
    ]


PADDED = pad_loop(pad_storage(pad_storage(SCALED, "y", {row: 8}), "x", {row: 8}), "y", row, 8)
STORED = pad_storage(pad_storage(SCALED, "x", {row: 6}), "y", {row: 4})
TILED = split(split(SCORES, "s", "row", 2), "s", "col", 2)
HALVES = split_operation(SCALED, "y", row, multiple=4)
BLOCKS = parallel(split(fuse(SCALED, "y", "batch", "row"), "y", "batch_row", 4), "y", "batch_row_outer")
BOUND = bind_threads(BLOCKS, "y", "batch_row_inner")
INSIDE = reorder(VALUES, "o", ("col", "inner"))


@pytest.mark.parametrize(("scheduled", "nest", "lines"), [
    (split(PADDED, "y", "row", 4), "y",
     ["for row_outer in 0 .. (lengths(batch) + 7) // 8 * 2:", "for row_inner in 0 .. 4:"]),
    (split(SCALED, "y", "inner", 3), "y", ["for inner_outer in 0 .. 1:", "for inner_inner in 0 .. 3:"]),
    (split(parallel(SCALED, "y", "batch", chunk=4), "y", "batch", 2), "y",
     ["parallel for batch_outer in 0 .. (batches() + 1) // 2 chunk 4:",
      "for batch_inner in 0 .. min(2, batches() - batch_outer * 2):"]),
    (split(vectorise(SCALED, "y", "inner"), "y", "inner", 2), "y",
     ["simd for inner_inner in 0 .. min(2, 3 - inner_outer * 2):"]),
    (fuse(SCALED, "y", "batch", "row"), "y",
     ["for batch_row in 0 .. offsets<lengths(x0)>(batches()):",
       "batch = fused_outer<batches(), lengths(x0)>(batch_row)",
       "row = fused_inner<batches(), lengths(x0)>(batch_row)"]),
    (fuse(SCORES, "s", "row", "head"), "s",
     ["for row_head in 0 .. lengths(batch) * 2:", "row = row_head // 2", "head = row_head % 2"]),
    (pad_loop(STORED, "y", row, 2), "y", ["for row in 0 .. (lengths(batch) + 1) // 2 * 2:"]),
    (HALVES, "y_main", ["for row in 0 .. lengths(batch) // 4 * 4:"]),
    (HALVES, "y_rest",
     ["for row_rest in 0 .. lengths(batch) - lengths(batch) // 4 * 4:", "row = row_rest + lengths(batch) // 4 * 4"]),
    (split_operation(SCALED, "y", row, point=2), "y_main", ["for row in 0 .. min(2, lengths(batch)):"]),
    (PROJECTION, "y", ["y[batch, row, out] += x[batch, row, inner] * w[inner, out]",
                       "y[batch, row, out] = max(y[batch, row, out] + bias[out], 0.0)"]),
    (remap(parallel(SCORES, "s", "batch"), "s", "batch"), "s",
     ["parallel for batch_th in 0 .. batches():", "batch = order<lengths(x0) * lengths(x0)>(batch_th)"]),
    (vectorise(SOFTMAX, "top", "col"), "top", ["simd for col in 0 .. lengths(batch) (reduction):"]),
    (unroll(SCALED, "y", "inner"), "y", ["unrolled for inner in 0 .. 3:"]),
    (inline(SOFTMAX, "e"), "z",
     ["z[batch, row, head] += exp(p[batch, row, head, col] - top[batch, row, head])"]),
])
def test_loops_after_a_step(scheduled, nest, lines):
    printed = loops(scheduled, nest)
    start = printed.index(lines[0])
    assert printed[start : start + len(lines)] == lines


def test_reorder_sees_through_split_loops():
    order = ("row_outer", "col_outer", "head", "row_inner", "col_inner")
    assert [line.split()[1] for line in loops(reorder(TILED, "s", order), "s") if line.startswith("for")][1:6] == list(
        order)


def test_operation_splitting_of_a_reduction():
    halves = split_operation(VALUES, "o", col, multiple=4)
    assert loops(halves, "o_main")[-1].endswith("(not finished)")
    assert loops(halves, "o_rest")[-1].endswith("(on top of what is stored)")


def test_threads_of_a_block_share_a_loop():
    assert "shared for batch_row_inner in 0 .." in loops(BOUND, "y")[1]
    assert loops(split(BOUND, "y", "batch_row_inner", 2), "y")[1].startswith("shared for batch_row_inner_outer in")


def test_padding_of_a_loop_that_another_depends_on_without_a_length_function():
    padded = pad_storage(CAUSAL, "s", {row: 4, col: 4})
    for tensor in ("q", "k"):
        padded = pad_storage(padded, tensor, {row: 4})
    both = pad_loop(pad_loop(padded, "s", row, 4), "s", col, 4)
    assert loops(both, "s")[3] == "for col in 0 .. (row + 4) // 4 * 4:"
    with pytest.raises(IllegalSchedule, match="k, dimension row, at col, whose loops are padded"):
        pad_storage(both, "k", {row: 2})


NO_SHARE = "cannot be shared by the threads of a block, since it is not a loop of the result directly in"


@pytest.mark.parametrize(("step", "message"), [
    (lambda: split(SCALED, "y", "row", 0), "y: loop row cannot be split into tiles of 0: use a positive int"),
    (lambda: split(SCALED, "y", "col", 2), "y has no loop col; there are: batch, row, inner"),
    (lambda: split(SCALED, "z", "row", 2), "program scaled has no operation z; there are: y"),
    (lambda: reorder(SCALED, "y", ("row", "batch")), "vloop row cannot stand outside of loop batch"),
    (lambda: reorder(CAUSAL, "s", ("col", "row")), "vloop col cannot stand outside of loop row"),
    (lambda: reorder(SCALED, "y", ("row", "row")), "order row, row names a loop twice"),
    (lambda: reorder(TILED, "s", ("row_inner", "row_outer")), "row_inner cannot stand outside of loop row_outer"),
    (lambda: fuse(TILED, "s", "row_outer", "row_inner"), "their extents depend on batch: fuse batch and row_outer"),
    (lambda: fuse(SCALED, "y", "batch", "inner"), "inner is not directly inside of batch in batch, row, inner"),
    (lambda: fuse(SCORES, "s", "col", "inner"), "one is of the result and one of the reduction"),
    (lambda: fuse(parallel(SCALED, "y", "batch"), "y", "batch", "row"), "loop batch is parallel: fuse before that"),
    (lambda: pad_loop(SCALED, "y", row, 4), "padded to multiples of 1: pad the storage to a multiple of 4 first"),
    (lambda: pad_loop(STORED, "y", row, 4), "padded to multiples of 4, but its storage is padded to multiples of 6"),
    (lambda: pad_storage(pad_loop(STORED, "y", row, 2), "x", {row: 3}), "pad the storage to a multiple of 2 first"),
    (lambda: pad_loop(pad_storage(PROJECTION, "w", {inner: 2}), "y", batch, 2), "lengths has no entry beyond its end"),
    (lambda: pad_loop(ITEMS, "m", row, 2), "length function widths has no entry beyond its end"),
    (lambda: pad_loop(SCALED, "y", row, 0), "cannot be padded to multiples of 0: use a positive int"),
    (lambda: pad_loop(split(SCALED, "y", "row", 2), "y", Dim("row_outer"), 2), "row_outer is no longer a whole"),
    (lambda: split_operation(HALVES, "y_main", row, multiple=2), "row is no longer a whole dimension"),
    (lambda: split_operation(SCALED, "y", row), "give either the multiple or the point at which to split row"),
    (lambda: split_operation(SCALED, "y", row, multiple=0), "loop row cannot be split at multiples of 0"),
    (lambda: split_operation(SCALED, "y", row, point=inner), "loop row cannot be split at inner: use a point of"),
    (lambda: remap(SCALED, "y", "row"), "cannot be remapped, since its extent depends on batch: fuse the two first"),
    (lambda: remap(SCALED, "y", "batch", row + 1), "loop batch cannot be remapped, since its work depends on row"),
    (lambda: parallel(VALUES, "o", "col"), "parallel loop col cannot stand inside the reduction col"),
    (lambda: parallel(parallel(SCORES, "s", "batch"), "s", "row"), "besides the parallel loop batch of s"),
    (lambda: parallel(SCALED, "y", "batch", chunk=0), "in chunks of 0: use at least 1"),
    (lambda: vectorise(parallel(SCALED, "y", "batch"), "y", "batch"), "loop batch is already parallel"),
    (lambda: vectorise(SCALED, "y", "row"), "simd loop row cannot stand outside of loop inner"),
    (lambda: vectorise(reorder(split(INSIDE, "o", "col", 2), "o", ("col_outer", "inner", "col_inner")), "o",
                       "col_inner"), "col_inner of the reduction cannot stand inside loop inner"),
    (lambda: bind_threads(BLOCKS, "y", "inner"), f"loop inner {NO_SHARE}"),
    (lambda: bind_threads(SCALED, "y", "batch"), f"loop batch {NO_SHARE}"),
    (lambda: split(BOUND, "y", "batch_row_outer", 2), f"loop batch_row_inner {NO_SHARE}"),
    (lambda: reorder(BOUND, "y", ("inner", "batch_row_inner")), f"loop batch_row_inner {NO_SHARE}"),
    (lambda: bind_threads(parallel(compute_at(SOFTMAX, "z", "y", "row"), "y", "row"), "y", "head"),
     "since z is computed at loop row: compute it at head"),
    (lambda: hfuse(bind_threads(parallel(parallel(HALVES, "y_main", "batch"), "y_rest", "batch"), "y_main", "row"),
                   ["y_main", "y_rest"]), "since the threads of a block share its loop row"),
    (lambda: unroll(SCALED, "y", "row"), "loop row has a variable number of iterations"),
    (lambda: unroll(split(SCALED, "y", "row", 4), "y", "row_inner"), "row_inner has up to 4 iterations"),
    (lambda: inline(SOFTMAX, "z"), "z cannot be inlined, since it is a reduction: use compute_at"),
    (lambda: inline(SOFTMAX, "y"), "y cannot be inlined, since it is an output of softmax"),
    (lambda: inline(split_operation(SOFTMAX, "e", row, multiple=2), "e_main"), "e_main cannot be inlined in parts"),
])
def test_illegal_steps_are_refused(step, message):
    with pytest.raises(IllegalSchedule, match=message):
        step()
