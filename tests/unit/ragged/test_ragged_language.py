"""Definitions are checked when they are written."""

import pytest
from ragged_cases import batch, batches, col, inner, lengths, row

from sparloom.errors import IllegalSchedule
from sparloom.ir import I32
from sparloom.ragged import Length, Tensor, compute, dims, max_over, program, sum_over

x = Tensor("x", {batch: batches(), row: lengths(batch), inner: 4})
token = {batch: batches(), row: lengths(batch)}


def test_an_extent_reads_only_dimensions_before_it():
    with pytest.raises(ValueError, match="tensor t: the extent of row depends on batch, which does not come before "
                                         "it: put batch first"):
        Tensor("t", {row: lengths(batch), batch: batches()})
    with pytest.raises(ValueError, match="length function w: the extent of row depends on batch"):
        Length("w", {row: lengths(batch)})


def test_a_negative_extent_and_a_dimension_twice_are_refused():
    with pytest.raises(ValueError, match="the extent of row is -1: extents are at least 0"):
        Tensor("t", {row: -1})
    with pytest.raises(ValueError, match="operation t: dimension row occurs twice: make a second name"):
        compute("t", token, sum_over({row: 3}, x[batch, row, 0]))


@pytest.mark.parametrize("make", [lambda: dims("a b-c"), lambda: Length("for"), lambda: Tensor("_x", {row: 3})])
def test_names_are_names_of_kernels(make):
    with pytest.raises(ValueError, match="use letters, digits and single underscores after a letter"):
        make()


def test_elements_have_types_of_the_language():
    with pytest.raises(ValueError, match="tensor t of i32: elements are f32, f64, bf16, u8, i8"):
        Tensor("t", {row: 3}, I32)


def test_coordinates_are_counted():
    with pytest.raises(ValueError, match=r"length function lengths takes 1 coordinates \(batch\), got 2"):
        lengths(batch, row)
    with pytest.raises(ValueError, match=r"tensor x has 3 dimensions \(batch, row, inner\), indexed with 1"):
        x[batch]


def test_a_limit_is_a_number():
    with pytest.raises(ValueError, match="length function w: its limit reads batch: use a constant"):
        Length("w", {batch: batches()}, limit=lengths(batch))


def test_values_read_known_dimensions_and_other_tensors():
    with pytest.raises(IllegalSchedule, match="y reads col, which is not one of its dimensions: batch, inner, row"):
        compute("y", {**token, inner: 4}, x[batch, col, inner])
    with pytest.raises(IllegalSchedule, match="x reads itself: give the result another name"):
        compute("x", {**token, inner: 4}, x[batch, row, inner])


def test_a_value_has_one_reduction():
    total = sum_over({inner: 4}, x[batch, row, inner])
    with pytest.raises(IllegalSchedule, match="y has 2 reductions: compute all but one as separate tensors"):
        compute("y", token, total / sum_over({col: 4}, x[batch, row, col]))
    with pytest.raises(IllegalSchedule, match="a reduction over no dimension"):
        max_over({}, x[batch, row, 0])


def test_accesses_must_stay_inside():
    with pytest.raises(IllegalSchedule, match=r"y accesses x, dimension inner, at inner, which cannot be shown to stay "
                                              r"below 4: read it by a dimension of that extent"):
        program("p", [compute("y", {**token, inner: 5}, x[batch, row, inner])])
    with pytest.raises(IllegalSchedule, match=r"at row \+ 1, which cannot be shown to stay below lengths\(batch\)"):
        program("p", [compute("y", {**token, inner: 4}, x[batch, row + 1, inner])])
    with pytest.raises(IllegalSchedule, match=r"at row - 1, which cannot be shown to be at least 0"):
        program("p", [compute("y", {**token, inner: 4}, x[batch, row - 1, inner])])


def test_a_shorter_dimension_and_a_constant_may_read_a_longer_one():
    program("p", [compute("y", {**token, inner: 3}, x[batch, row, inner + 1])])
    program("p", [compute("y", {**token, col: row + 1}, x[batch, col, 3])])


def test_a_constant_stays_below_extents_that_are_never_less():
    triangle = Tensor("t", {row: 4, col: row + 1})
    program("p", [compute("y", {row: 4}, triangle[row, 0])])
    with pytest.raises(IllegalSchedule, match=r"dimension col, at 1, which cannot be shown to stay below row \+ 1"):
        program("p", [compute("y", {row: 4}, triangle[row, 1])])
    with pytest.raises(IllegalSchedule, match=r"at 0, which cannot be shown to stay below lengths\(batch\)"):
        program("p", [compute("y", {batch: batches()}, x[batch, 0, 0])])


def test_a_limit_shows_that_an_access_stays_inside():
    short = Length("bounded", {batch: batches()}, limit=4)
    program("p", [compute("y", {batch: batches(), inner: short(batch)}, sum_over({row: 2}, Tensor(
        "w", {row: 2, inner: 4})[row, inner]))])


def test_results_are_computed_before_they_are_read():
    y = compute("y", {**token, inner: 4}, x[batch, row, inner])
    z = compute("z", {**token, inner: 4}, y[batch, row, inner])
    with pytest.raises(IllegalSchedule, match="z reads y before it is computed: put y first"):
        program("p", [z, y])
    with pytest.raises(IllegalSchedule, match="program p defines y, y: define every tensor once"):
        program("p", [y, y])
    with pytest.raises(IllegalSchedule, match="program p computes no x; it computes: y, z"):
        program("p", [y, z], ["x"])
    with pytest.raises(IllegalSchedule, match="program p has a tensor and a dimension named row: give each its own "
                                              "name"):
        program("p", [compute("row", {batch: batches()}, sum_over({row: 1}, Tensor(
            "v", {batch: batches(), row: 1})[batch, row]))])
    other = Tensor("x", {row: 3})
    with pytest.raises(IllegalSchedule, match="program p has two tensors named x: give each its own name"):
        program("p", [y, compute("u", {row: 3}, other[row])])
