"""Printed stages of ragged programs; tests/unit/ragged runs the same programs."""

import pytest
from ragged_cases import CASES, batch, batches, col, computes, inner, lengths, row

from sparloom.ir import pretty
from sparloom.ragged import (
    Executable,
    Tensor,
    compute,
    compute_at,
    fuse,
    lower,
    offload,
    pad_loop,
    pad_storage,
    parallel,
    prelude_kernels,
    program,
    real,
    reorder,
    reorder_dimensions,
    split,
    split_dimension,
    split_operation,
    vectorise,
)


def tiled_scores():
    scheduled = pad_storage(pad_storage(CASES["scores"].program, "s", {row: 4}), "q", {row: 4})
    scheduled = fuse(split(pad_loop(scheduled, "s", row, 4), "s", "row", 4), "s", "batch", "row_outer")
    return vectorise(parallel(scheduled, "s", "batch_row_outer"), "s", "inner")


PROJECTION = fuse(CASES["projection"].program, "y", "batch", "row")
PROGRAMS = {"projection": parallel(PROJECTION, "y", "batch_row"), "scores": tiled_scores(),
            "causal": CASES["causal"].program}


def tiled_projection():
    tiled = split(split(PROJECTION, "y", "batch_row", 4), "y", "out", 2)
    return reorder(tiled, "y", ("batch_row_outer", "out_outer", "batch_row_inner", "out_inner", "inner"))


def product_of_tiles():
    """Product through a small array, which the operations after the product read."""
    return parallel(offload(tiled_projection(), "y", "batch_row_inner", "out_inner", "inner"), "y", "batch_row_outer")


def product_of_panels():
    panels = reorder_dimensions(split_dimension(tiled_projection(), "w", "out", 2), "w", (
        "out_block", "inner", "out_within"))
    return offload(panels, "y", "batch_row_inner", "out_inner", "inner")


def product_in_blocks():
    """Product of a constant number of blocks; all but the first add to the result."""
    blocks = reorder(split(tiled_projection(), "y", "inner", 2), "y", (
        "batch_row_outer", "inner_outer", "out_outer", "batch_row_inner", "out_inner", "inner_inner"))
    return offload(blocks, "y", "batch_row_inner", "out_inner", "inner_inner")


def product_in_blocks_of_blocks():
    """Blocks of blocks: all but the very first add to the result."""
    blocks = split(split(tiled_projection(), "y", "inner", 1), "y", "inner_outer", 3)
    blocks = reorder(blocks, "y", ("batch_row_outer", "inner_outer_outer", "inner_outer_inner", "out_outer",
                                   "batch_row_inner", "out_inner", "inner_inner"))
    return offload(blocks, "y", "batch_row_inner", "out_inner", "inner_inner")


def product_in_any_number_of_blocks():
    """Any number of blocks; the result starts with zeros."""
    blocks = reorder(split(CASES["values"].program, "o", "col", 2), "o", (
        "batch", "head", "col_outer", "row", "inner", "col_inner"))
    return offload(blocks, "o", "row", "inner", "col_inner")


def product_in_any_number_of_blocks_of_blocks():
    """The result starts with zeros, because the first block is not known."""
    blocks = reorder(split(split(CASES["values"].program, "o", "col", 2), "o", "col_outer", 2), "o", (
        "batch", "head", "col_outer_outer", "col_outer_inner", "row", "inner", "col_inner"))
    return offload(blocks, "o", "row", "inner", "col_inner")


def halves_of_a_product():
    """The rest adds to the result of the main part."""
    halves = split_operation(CASES["values"].program, "o", col, point=2)
    for each in ("o_main", "o_rest"):
        halves = reorder(halves, each, ("batch", "head", "row", "inner"))
        halves = offload(halves, each, *(loop.name for loop in halves.nest(each).loops[-3:]))
    return halves


def halves():
    """The second half computes the operations after the sum."""
    return split_operation(CASES["projection"].program, "y", inner, point=2)


def sum_in_vectors():
    """Only the inner loop reduces over lanes."""
    return vectorise(split(CASES["values"].program, "o", "col", 4), "o", "col_inner")


def array_of_sums():
    tiled = split(CASES["values"].program, "o", "inner", 2)
    return reorder(tiled, "o", ("inner_outer", "col", "inner_inner"))


def sums_in_the_result():
    return reorder(CASES["scores"].program, "s", ("inner", "col"))


def padded_sum():
    stored = CASES["values"].program
    for tensor, padding in {"p": {col: 4}, "v": {row: 4}}.items():
        stored = pad_storage(stored, tensor, padding)
    return vectorise(pad_loop(stored, "o", col, 4), "o", "col")


def producers_in_an_iteration():
    """Producers with local arrays of constant and of variable size."""
    scheduled = CASES["softmax"].program
    for name in ("z", "e", "top"):
        scheduled = compute_at(scheduled, name, "y", "head", local=True)
    return parallel(fuse(scheduled, "y", "batch", "row"), "y", "batch_row")


def producer_of_a_tile():
    """Producer of a tile, whose array begins at the tile."""
    x = Tensor("x", {batch: batches(), row: lengths(batch), inner: 3})
    shape = {batch: batches(), row: lengths(batch), inner: 3}
    twice = compute("twice", shape, x[batch, row, inner] * real(2.0))
    shifted = compute("shifted", shape, twice[batch, row, inner] + real(1.0))
    return compute_at(split(program("chain", [twice, shifted]), "shifted", "row", 4), "twice", "shifted", "row_outer",
                      local=True)


def storage_in_blocks():
    """Tokens in blocks of their sequences; the loops run along neither."""
    blocks = split_dimension(CASES["scores"].program, "q", "row", 4)
    return reorder_dimensions(blocks, "q", ("row_block", "head", "row_within", "inner"))


NESTS = {each.__name__: each() for each in (
    product_of_tiles, product_of_panels, product_in_blocks, product_in_blocks_of_blocks,
    product_in_any_number_of_blocks, product_in_any_number_of_blocks_of_blocks, halves_of_a_product, halves,
    array_of_sums, sums_in_the_result, padded_sum, sum_in_vectors, producers_in_an_iteration,
    producer_of_a_tile, storage_in_blocks)}


@pytest.mark.parametrize("name", NESTS)
def test_the_kernels_of_a_nest(name, golden):
    golden(f"ragged/{name}.ir", "\n".join(pretty(each.kernel) for each in lower(NESTS[name])))


@pytest.mark.parametrize("name", [name for name, nest in NESTS.items() if nest.name in CASES])
def test_a_nest_computes_its_case(name):
    computes(NESTS[name].name, NESTS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loops(name, golden):
    golden(f"ragged/{name}.txt", str(PROGRAMS[name]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_kernels_and_their_prelude(name, golden):
    lowered = lower(PROGRAMS[name])
    tables = [each for kernel in lowered for each in kernel.meaning.values() if not isinstance(each, Tensor)]
    kernels = [each.kernel for each in (*lowered, *prelude_kernels(tables))]
    golden(f"ragged/{name}.ir", "\n".join(map(pretty, kernels)))


@pytest.mark.cc
def test_the_generated_code(golden, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    golden("ragged/projection.c", Executable(PROGRAMS["projection"]).source())
