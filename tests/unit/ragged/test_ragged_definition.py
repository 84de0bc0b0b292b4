"""Definitions of ragged programs: what they compute, and accesses that are shown to stay in bounds or refused."""

import math
import re

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import (
    CASES,
    HEADS,
    SIZE,
    batch,
    batches,
    col,
    computes,
    expected,
    head,
    inner,
    lengths,
    operands,
    row,
    structure,
    which,
)

from sparloom import ragged
from sparloom.errors import IllegalSchedule
from sparloom.ir import F64, I32, Binary, Const
from sparloom.jit import compile_c
from sparloom.ops import assert_close
from sparloom.ragged import (
    Executable,
    Length,
    RaggedTensor,
    Structure,
    Tensor,
    compute,
    dims,
    interpreted,
    less,
    max_over,
    minimum,
    pad_loop,
    pad_storage,
    part,
    program,
    real,
    round_up,
    sum_over,
    where,
)

x = Tensor("x", {batch: batches(), row: lengths(batch), inner: 4})
token = {batch: batches(), row: lengths(batch)}


copy = compute("copy", {**token, inner: 4}, x[batch, row, inner])
again = compute("again", {**token, inner: 4}, copy[batch, row, inner])
total = sum_over({inner: 4}, x[batch, row, inner])


parts_x = Tensor("x", {**token, inner: 3})
pair = Tensor("pair", {**token, which: 2, inner: 3})
value = parts_x[batch, row, inner]
DOUBLE, NEXT = part("double", pair, {which: 0}, value + value), part("next", pair, {which: 1}, value + real(1.0))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Tensor("t", {row: lengths(batch), batch: batches()}), "tensor t: the extent of row depends on batch"),
    (lambda: Length("w", {row: lengths(batch)}), "length function w: the extent of row depends on batch"),
    (lambda: Tensor("t", {row: -1}), "the extent of row is -1: extents are at least 0"),
    (lambda: compute("t", token, sum_over({row: 3}, x[batch, row, 0])), "operation t: dimension row occurs twice"),
    (lambda: dims("a b-c"), "use letters, digits and single underscores after a letter"),
    (lambda: Length("for"), "use letters, digits and single underscores after a letter"),
    (lambda: Tensor("_x", {row: 3}), "use letters, digits and single underscores after a letter"),
    (lambda: Tensor("t", {row: 3}, I32), "tensor t of i32: elements are f32, f64, bf16, u8, i8"),
    (lambda: lengths(batch, row), r"length function lengths takes 1 coordinates \(batch\), got 2"),
    (lambda: x[batch], r"tensor x has 3 dimensions \(batch, row, inner\), indexed with 1"),
    (lambda: Length("w", {batch: batches()}, limit=lengths(batch)), "w: its limit reads batch: use a constant"),
    (lambda: compute("y", {**token, inner: 4}, x[batch, col, inner]), "y reads col, which is not one of its dim"),
    (lambda: compute("x", {**token, inner: 4}, x[batch, row, inner]), "x reads itself: give the result another name"),
    (lambda: compute("y", token, total / sum_over({col: 4}, x[batch, row, col])), "y has 2 reductions"),
    (lambda: max_over({}, x[batch, row, 0]), "a reduction over no dimension"),
    (lambda: program("p", [again, copy]), "again reads copy before it is computed: put copy first"),
    (lambda: program("p", [copy, copy]), "program p defines copy, copy: define every tensor once"),
    (lambda: program("p", [copy, again], ["x"]), "program p computes no x; it computes: copy, again"),
    (lambda: program("p", [compute("row", {batch: batches()}, sum_over({row: 1}, Tensor(
        "v", {batch: batches(), row: 1})[batch, row]))]), "program p has a tensor and a dimension named row"),
    (lambda: program("p", [copy, compute("u", {row: 3}, Tensor("x", {row: 3})[row])]), "two tensors named x"),
    (lambda: program("late", [DOUBLE, compute("last", {**token, inner: 3}, pair[batch, row, 0, inner]), NEXT]),
     "last reads pair before it is computed: put pair first"),
    *((lambda parts=parts: program("p", parts, ["pair"]), "they must fix the same dimensions, and have every coord")
      for parts in ([DOUBLE], [DOUBLE, NEXT, part("again", pair, {which: 1}, value)],
                    [DOUBLE, part("other", pair, {inner: 1}, parts_x[batch, row, which])])),
    (lambda: program("p", [DOUBLE, NEXT, compute("pair", dict(pair.axes), parts_x[batch, row, inner])]),
     "define every tensor once"),
    (lambda: part("third", pair, {which: 2}, value), "part third of pair at which = 2: use a coordinate of a dimension "
                                                     "of constant extent: which: 2, inner: 3"),
    (lambda: part("first", pair, {row: 0}, value), "part first of pair at row = 0"),
])
def test_invalid_definitions_are_refused(make, message):
    with pytest.raises((ValueError, IllegalSchedule), match=message):
        make()


BATCHES = [(), (0,), (1,), (3, 0, 5), (4, 4), (7, 1, 0, 0, 2)]


@pytest.mark.parametrize("entries", BATCHES)
@pytest.mark.parametrize("name", CASES)
def test_interpreted_programs(name, entries):
    case, of = CASES[name], structure(entries)
    inputs = operands(case.program, of, seed=1)
    found = interpreted(case.program, of, **{each: value.data for each, value in inputs.items()})
    for output, oracle in expected(case, of, inputs).items():
        packed = RaggedTensor(case.program.tensors()[output], of, found[output]).to_packed()[0]
        assert_close(packed.reshape(-1), oracle, terms=16, scale=8.0)


@pytest.mark.cc
@pytest.mark.parametrize("name", CASES)
def test_compiled_programs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    case = CASES[name]
    run = Executable(case.program)
    for entries in BATCHES:
        of = structure(entries, compiler=compile_c)
        inputs = operands(case.program, of, seed=1)
        made = run(of, **{each: value.data for each, value in inputs.items()})
        found = dict(zip(case.program.outputs, made if isinstance(made, tuple) else (made,), strict=True))
        for output, oracle in expected(case, of, inputs).items():
            np.testing.assert_equal(found[output].size, oracle.size)
            assert_close(found[output], oracle, terms=16, scale=8.0)


values_x = ragged.Tensor("x", {**token, inner: 3})
OF = ragged.Structure({lengths: [2, 0, 3]}, InterpretedLibrary)
X = np.random.default_rng(0).standard_normal((5, 3), np.float32)


def run(value, axes=token):
    return ragged.interpreted(ragged.program("p", [ragged.compute("y", axes, value)]), OF, x=X)["y"]


def test_a_reduction_over_no_dimension():
    empty = {"sum": 0.0, "max": -math.inf, "min": math.inf}
    for reduce, name in ((ragged.sum_over, "sum"), (ragged.max_over, "max"), (ragged.min_over, "min")):
        np.testing.assert_array_equal(run(reduce({inner: 0}, values_x[batch, row, inner])), np.full(5, empty[name]))


def test_a_condition_on_dimensions_masks_elements():
    square = {**token, col: lengths(batch)}
    found = run(ragged.where(ragged.less(col, row + 1), values_x[batch, col, 0], ragged.real(-1.0)), square)
    expected = [np.where(np.tri(n, dtype=bool), X[start : start + n, 0], -1) for start, n in ((0, 2), (2, 3))]
    np.testing.assert_array_equal(found, np.concatenate([each.reshape(-1) for each in expected]))


def test_lengths_and_dimensions_are_numbers():
    found = run(ragged.where(ragged.less(row, 9), ragged.real(lengths(batch)) * ragged.real(10.0) + ragged.real(row),
                             values_x[batch, row, 0]), token)
    np.testing.assert_array_equal(found, [20, 21, 30, 31, 32])


def test_two_dimensions_are_reduced_at_once():
    found = run(ragged.sum_over({row: lengths(batch), inner: 3}, values_x[batch, row, inner]), {batch: batches()})
    np.testing.assert_allclose(found, [X[:2].sum(), 0, X[2:].sum()], rtol=1e-6)


@pytest.mark.cc
def test_double_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    wide = ragged.Tensor("x", {**token, inner: 3}, F64)
    value = ragged.sum_over({inner: 3}, wide[batch, row, inner] * wide[batch, row, inner])
    run = ragged.Executable(ragged.program("p", [ragged.compute("y", token, value, F64)]))
    data = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_allclose(run(ragged.Structure({lengths: [2, 3]}), x=data), (data**2).sum(axis=1), rtol=1e-14)


def test_minima_and_maxima_ignore_padding_with_every_accumulator():
    """Padding is NaN, so a maximum and a minimum cannot both ignore it by chance."""
    for reduce, of in ((ragged.max_over, np.max), (ragged.min_over, np.min)):
        top = ragged.program("p", [ragged.compute("y", {batch: batches(), inner: 3}, reduce(
            {row: lengths(batch)}, values_x[batch, row, inner]))])
        padded = ragged.pad_loop(ragged.pad_storage(top, "x", {row: 4}), "y", row, 4)
        tiled = ragged.reorder(ragged.split(padded, "y", "row", 2), "y", ("row_outer", "row_inner", "inner"))
        stored = np.full((8, 3), np.nan, np.float32)
        stored[:2], stored[4:7] = X[:2], X[2:]
        for each in (padded, tiled, ragged.vectorise(ragged.reorder(padded, "y", ("row", "inner")), "y", "inner")):
            found = ragged.interpreted(each, OF, x=stored)["y"].reshape(3, 3)
            np.testing.assert_array_equal(found[[0, 2]], [of(X[:2], axis=0), of(X[2:], axis=0)])


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
    (6, 6, 4, 1), (6, 6, 4, 3), (5, 6, 4, 7), (LONGEST, LONGEST, 2, 1), (limited(batch), 6, 4, 1),
    (LONGEST, LONGEST, 4, 2), (row + 1, LONGEST, 4, 2),
])
def test_padded_loops_need_storage_that_is_padded_as_well(loop, extent, multiple, stored):
    with pytest.raises(IllegalSchedule, match=f"y accesses x, dimension inner, at col, whose loops are padded to "
                                              f"multiples of {multiple}, but its storage is padded to multiples of "
                                              f"{stored}: pad the storage to a multiple of {multiple} first"):
        stored_and_padded(loop, extent, multiple=multiple, stored=stored)


def test_lengths_have_no_entries_for_padded_iterations():
    """Neither as the extent of a reduction nor in the value."""
    message = ("y: loop row cannot be padded, since length function widths has no entry beyond its end: pad "
               "another loop$")
    summed = compute("y", OUTER, sum_over({col: widths(batch, row)}, real(1)))
    asked = compute("y", OUTER, where(less(Const(0), widths(batch, row)), real(1), real(0)))
    for y in (summed, asked):
        with pytest.raises(IllegalSchedule, match=message):
            pad_loop(pad_storage(program("p", [y]), "y", {row: 4}), "y", row, 4)


guards_token = {batch: batches(), row: lengths(batch), head: HEADS, inner: SIZE}
q = ragged.Tensor("q", guards_token)


def padded(value):
    stored = ragged.pad_storage(ragged.program("p", [ragged.compute("y", guards_token, value)]), "y", {row: 4})
    return ragged.pad_loop(stored, "y", row, 4)


def test_padded_loops_read_under_a_condition():
    read, zero = q[batch, row, head, inner], real(0.0)
    both = Binary("and", less(row, lengths(batch)), less(head, HEADS))
    for value in (where(less(row, lengths(batch)), read, zero), where(both, read, zero)):
        padded(value)
    for value in (read, where(less(row, lengths(batch) + 1), read, zero), where(both, zero, read)):
        with pytest.raises(IllegalSchedule, match="y accesses q, dimension row, at row, whose loops are padded"):
            padded(value)


def test_added_padding_is_fused_with_the_product_that_reads_it():
    fused = ragged.inline(ragged.inline(CASES["added"].program, "q_added"), "k_added")
    stored = ragged.pad_storage(fused, "s", {row: 4, col: 4})
    tiled = ragged.split(ragged.pad_loop(ragged.pad_loop(stored, "s", row, 4), "s", col, 4), "s", "col", 4)
    found = computes("added", ragged.unroll(tiled, "s", "col_inner"))["s"]
    assert np.isfinite(found).all()  # padding is computed from zeros


def test_tables_are_not_read_beyond_the_end_of_a_condition():
    """Rows of a triangle begin at entries of a table, which has none for padded rows."""
    triangle = ragged.Tensor("x", {batch: batches(), row: lengths(batch), col: row + 1, inner: 2})
    y = ragged.compute("y", {batch: batches(), row: lengths(batch), inner: 2}, ragged.where(
        ragged.less(row, lengths(batch)), triangle[batch, row, 0, inner], ragged.real(0.0)))
    longer = ragged.pad_loop(ragged.pad_storage(ragged.program("p", [y]), "y", {row: 8}), "y", row, 8)
    of = ragged.Structure({lengths: [5, 3]}, InterpretedLibrary)
    inputs = operands(longer, of, seed=2)
    found = ragged.interpreted(longer, of, x=inputs["x"].data)["y"]
    np.testing.assert_array_equal(found.reshape(16, 2)[:5, 0], [inputs["x"].slice(0, each)[0, 0] for each in range(5)])
    assert len(ragged.lower(longer)) == 1


def test_a_sum_is_bounded_by_a_condition_on_one_of_its_parts():
    later = ragged.Dim("later")

    def moved(limit):
        seen = ragged.where(ragged.less(later, limit), q[batch, row + later, head, inner], ragged.real(0.0))
        return ragged.program("p", [ragged.compute("y", guards_token, ragged.sum_over({later: lengths(batch)}, seen))])

    of = ragged.Structure({lengths: [5, 0, 3]}, InterpretedLibrary)
    inputs = operands(program := moved(lengths(batch) - row), of, seed=3)
    found = ragged.RaggedTensor(program.tensors()["y"], of, ragged.interpreted(program, of, q=inputs["q"].data)["y"])
    for number, length in enumerate([5, 0, 3]):
        values = inputs["q"].slice(number)[:length].astype(float)
        np.testing.assert_allclose(found.slice(number)[:length], values[::-1].cumsum(0)[::-1], atol=1e-5)
    for limit in (lengths(batch) - row + 1, lengths(batch), lengths(batch) - head):
        with pytest.raises(IllegalSchedule, match=r"at row \+ later, which cannot be shown to stay below"):
            moved(limit)


def test_parts_are_nests_of_one_tensor():
    both = program("both", [DOUBLE, NEXT], ["pair"])
    of = Structure({lengths: [2, 0, 1]}, InterpretedLibrary)
    inputs = np.arange(9, dtype=np.float32)
    found = interpreted(both, of, x=inputs)["pair"].reshape(3, 2, 3)
    np.testing.assert_array_equal(found, np.stack([2 * inputs.reshape(3, 3), inputs.reshape(3, 3) + 1], axis=1))
    assert "pair[batch, row, 1, inner] = x[batch, row, inner] + 1.0" in str(both)
