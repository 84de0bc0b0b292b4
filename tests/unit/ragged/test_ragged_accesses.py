"""Proofs that accesses stay in bounds, and errors about the others."""

import re

import pytest
from ragged_cases import SIZE, batch, batches, col, inner, lengths, row

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const
from sparloom.ragged import (
    Length,
    Tensor,
    compute,
    fuse,
    less,
    minimum,
    pad_loop,
    pad_storage,
    program,
    real,
    round_up,
    sum_over,
    where,
)

OUTER = {batch: batches(), row: lengths(batch)}
LONGEST = lengths(batch)
limited = Length("limited", {batch: batches()}, limit=6)


widths = Length("widths", {batch: batches(), row: lengths(batch)})


def copied(extent, index, *, loop=SIZE, guard=None):
    """y[batch, row, col] = x[batch, row, index], where x has `extent` elements there and col runs to `loop`."""
    value = Tensor("x", {**OUTER, inner: extent})[batch, row, index]
    return program("p", [compute("y", {**OUTER, col: loop}, value if guard is None else where(guard, value, real(0)))])


def stored_and_padded(loop, extent, *, multiple, stored=1):
    """Pad the loop along col, the storage of y as well, and that of x to multiples of `stored`."""
    made = pad_storage(copied(extent, col, loop=loop), "y", {col: multiple})
    return pad_loop(pad_storage(made, "x", {inner: stored}) if stored > 1 else made, "y", col, multiple)


@pytest.mark.parametrize(("extent", "index", "loop"), [
    (3, Const(2), 3),
    (4, col + 1, 3),
    (LONGEST + 1, Const(0), 3),  # lengths are at least 0
    (LONGEST + LONGEST + 2, Const(1), 3),
    (LONGEST, col, LONGEST),
    (round_up(LONGEST, 16), col, LONGEST),
    (LONGEST, minimum(col, LONGEST - 1), round_up(LONGEST, 16)),
    (LONGEST, minimum(col, LONGEST - 1), Binary("min", Const(4), round_up(LONGEST, 16))),
    (LONGEST, col, Binary("min", LONGEST, Const(4))),
    (4, col, Binary("min", LONGEST, Const(4))),
    (Binary("min", LONGEST, Const(4)), col, Binary("min", LONGEST, Const(4))),
    ((row // 4 + 1) * 4, col, row + 1),
    ((row // 4 + 1) * 4, col, row),
    (6, col, limited(batch)),
    (LONGEST, col, row + 1),
    (LONGEST + 1, col, row + 2),
    (LONGEST * 2, col, (row + 1) * 2),
    (Binary("max", LONGEST, Const(2)), col, Binary("max", row + 1, Const(2))),
    (Binary("min", LONGEST, limited(batch)), col, Binary("min", row + 1, limited(batch))),
    ((LONGEST - 1) // 2 + 1, col, row // 2 + 1),
    ((LONGEST - 1) // 2 - 1, col, row // 2 - 1),
])
def test_accesses_proved_in_bounds_are_accepted(extent, index, loop):
    assert copied(extent, index, loop=loop).tensors()["x"].axes[2] == (inner, extent if not isinstance(extent, int)
                                                                      else Const(extent))


@pytest.mark.parametrize(("extent", "index", "loop", "below"), [
    (3, Const(3), 3, "3"),
    (3, col + 1, 3, "3"),
    (LONGEST, Const(0), 3, "lengths(batch)"),
    (LONGEST + 1, Const(1), 3, "lengths(batch) + 1"),
    (LONGEST * 2 + 1, Const(0), 3, "lengths(batch) * 2 + 1"),
    (Binary("min", LONGEST, Const(4)), col, Const(4), "lengths(batch)"),
    (Binary("min", LONGEST, Const(4)), col, LONGEST, "4"),
    (3, col, Binary("min", LONGEST, Const(4)), "3"),
    ((row // 4 + 1) * 4, col, row + 2, "(row // 4 + 1) * 4"),
    ((row // 4 + 1) * 8, col, row + 1, "(row // 4 + 1) * 8"),
    ((row // 4 + 2) * 4, col, row + 1, "(row // 4 + 2) * 4"),
    (5, col, limited(batch), "5"),
    (6, col, LONGEST, "6"),
    (LONGEST, col, row + 2, "lengths(batch)"),
    (1, col, LONGEST - row, "1"),  # falls when row grows
    (2, col, Binary("max", LONGEST - row, Const(2)), "2"),
    (4, col, Binary("max", LONGEST - row, Const(2)) * 2, "4"),
    (1, col, Binary("max", LONGEST - row, Const(2)) - 1, "1"),
    (LONGEST, col, round_up(LONGEST, 16), "lengths(batch)"),
    (round_up(LONGEST, 16), col, LONGEST + 1, "(lengths(batch) + 15) // 16 * 16"),
])
def test_unproved_accesses_are_refused_and_name_the_extent(extent, index, loop, below):
    with pytest.raises(IllegalSchedule, match="y accesses x, dimension inner, at .*, which cannot be shown to stay "
                                              "below " + re.escape(below) + ": read it by a dimension of that extent"):
        copied(extent, index, loop=loop)


@pytest.mark.parametrize("index", [row - 1, LONGEST - 1, col % 2, col + Const(-1),
                                   minimum(col, LONGEST - 1)])
def test_indices_that_may_be_negative_are_refused(index):
    with pytest.raises(IllegalSchedule, match=r"y accesses x, dimension inner, at .*, which cannot be shown to be at "
                                              r"least 0: read it by a separate dimension, or guard"):
        copied(100, index)


def test_a_condition_bounds_one_part_of_a_smaller_extent():
    extent = Binary("min", LONGEST, Const(4))
    copied(extent, col, loop=LONGEST, guard=less(col, 4))
    with pytest.raises(IllegalSchedule, match="stay below 4"):
        copied(extent, col, loop=LONGEST, guard=less(col, 5))


@pytest.mark.parametrize(("loop", "extent", "multiple", "stored"), [
    (8, 8, 4, 1), (6, 8, 4, 1), (5, 5, 4, 9), (3, 3, 2, 4), (limited(batch), 8, 4, 1),
])
def test_padded_loops_of_constants_fit_where_their_last_iteration_does(loop, extent, multiple, stored):
    stored_and_padded(loop, extent, multiple=multiple, stored=stored)


@pytest.mark.parametrize(("loop", "extent", "multiple", "stored"), [
    (6, 6, 4, 1), (6, 6, 4, 3), (5, 6, 4, 7), (LONGEST, LONGEST, 2, 1), (limited(batch), 6, 4, 1),
    (LONGEST, LONGEST, 4, 2), (row + 1, LONGEST, 4, 2),
])
def test_padded_loops_need_storage_that_is_padded_as_well(loop, extent, multiple, stored):
    with pytest.raises(IllegalSchedule, match=f"y accesses x, dimension inner, at col, whose loops are padded to "
                                              f"multiples of {multiple}, but its storage is padded to multiples of "
                                              f"{stored}: pad the storage to a multiple of {multiple} first"):
        stored_and_padded(loop, extent, multiple=multiple, stored=stored)


def test_an_index_next_to_a_padded_dimension_is_refused():
    made = pad_storage(copied(8, col + 1, loop=3), "y", {col: 2})
    with pytest.raises(IllegalSchedule, match="cannot be shown to stay below 8"):
        pad_loop(made, "y", col, 2)


def test_lengths_have_no_entries_for_padded_iterations():
    """Neither as the extent of a reduction nor in the value."""
    message = ("y: loop row cannot be padded, since length function widths has no entry beyond its end: fuse it with "
               r"the loop inside and pad that \(bulk padding\)$")
    summed = compute("y", OUTER, sum_over({col: widths(batch, row)}, real(1)))
    asked = compute("y", OUTER, where(less(Const(0), widths(batch, row)), real(1), real(0)))
    for y in (summed, asked):
        with pytest.raises(IllegalSchedule, match=message):
            pad_loop(pad_storage(program("p", [y]), "y", {row: 4}), "y", row, 4)


def test_lengths_are_not_read_in_bulk_padding():
    y = compute("y", OUTER, Tensor("x", OUTER)[batch, row] * real(lengths(batch)))
    stored = pad_storage(pad_storage(program("p", [y]), "x", bulk={row: 4}), "y", bulk={row: 4})
    fuse(stored, "y", "batch", "row")
    with pytest.raises(IllegalSchedule, match=r"^y reads lengths\(batch\), which is not defined in bulk padding: fuse "
                                              r"without padding$"):
        fuse(stored, "y", "batch", "row", padding=4)


def in_bulk(x: Tensor, value, *, multiple: int = 4):
    """Pad the fused loop of batch and row where y has storage for it."""
    made = program("p", [compute("y", {**OUTER, inner: SIZE}, value(x))])
    return fuse(pad_storage(made, "y", bulk={row: multiple}), "y", "batch", "row", padding=multiple)


@pytest.mark.parametrize(("x", "value"), [
    (Tensor("x", {**OUTER, inner: SIZE}, bulk={row: 8}), lambda x: x[batch, row, inner]),
    (Tensor("x", {inner: SIZE, **OUTER}, bulk={row: 4}), lambda x: x[inner, batch, row]),
    (Tensor("x", {inner: SIZE}), lambda x: x[inner]),
])
def test_bulk_padded_storage_is_read_by_bulk_padded_loops(x, value):
    in_bulk(x, value)


@pytest.mark.parametrize(("x", "value", "place"), [
    (Tensor("x", {**OUTER, inner: SIZE}), lambda x: x[batch, row, inner], "batch"),
    (Tensor("x", {**OUTER, inner: SIZE}, bulk={row: 6}), lambda x: x[batch, row, inner], "batch"),
    (Tensor("x", {**OUTER, inner: SIZE}, padding={row: 4}), lambda x: x[batch, row, inner], "batch"),
    (Tensor("x", {batch: batches(), inner: SIZE}), lambda x: x[batch, inner], "batch"),
    (Tensor("x", {batch: batches(), inner: SIZE, row: lengths(batch)}), lambda x: x[batch, inner, row], "batch"),
    (Tensor("x", {inner: SIZE, **OUTER}), lambda x: x[inner, batch, row], "batch"),
    (Tensor("x", {batch: batches(), col: lengths(batch)}), lambda x: x[batch, row], "batch"),
])
def test_bulk_padded_loops_refuse_other_storage(x, value, place):
    with pytest.raises(IllegalSchedule, match=(
            rf"^y accesses x at {place} in a fused loop padded to multiples of 4: x must store batch and row next to "
            rf"each other, unpadded but for bulk padding of \w+ to a multiple of 4: pad_storage\(bulk=...\) first$")):
        in_bulk(x, value)
