"""Tile schedules: contents and checks."""


import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.fusion import TileSchedule, check_schedule
from sparloom.sparse import Pattern

# The example of the paper's figure 3: iterations 2 and 5 of loop two read from both tiles.
READS = Pattern.from_coo(
    np.array([0, 0, 1, 1, 2, 2, 3, 4, 5, 5]), np.array([0, 1, 1, 2, 2, 3, 3, 4, 1, 5]), (6, 6))


def _schedule(**changes: object) -> TileSchedule:
    arrays = {
        "tiles": (2, 2), "first": np.array([0, 3, 6]), "second": np.array([0, 1, 3, 4, 2, 5], np.int32),
        "second_ptr": np.array([0, 2, 4, 5, 6]), "needed": np.array([0, 1, 1, 1, 0, 1], np.uint8)}
    return TileSchedule(**(arrays | changes))


def test_a_schedule_reports_its_iterations_and_ratios():
    schedule = _schedule()
    assert schedule.iterations == (6, 6)
    assert schedule.fused == 4
    assert schedule.fused_ratio == pytest.approx(4 / 12)
    assert schedule.fused_rows == pytest.approx(4 / 6)
    assert schedule.largest_tile == 3
    assert repr(schedule) == "TileSchedule(6 + 6 iterations, (2, 2) tiles, 66.7% of loop two fused)"


def test_loops_without_iterations_have_a_schedule():
    nothing = np.zeros(1, np.int64)
    schedule = TileSchedule((0, 0), nothing, np.zeros(0, np.int32), nothing, np.zeros(0, np.uint8))
    check_schedule(schedule, Pattern((0, 0), nothing, np.zeros(0, np.int32)))
    assert (schedule.fused_ratio, schedule.fused_rows, schedule.largest_tile) == (0.0, 0.0, 0)


def test_equality_and_digest_depend_on_the_arrays():
    schedule, slower = _schedule(), _schedule(build_seconds=1.0)
    assert schedule == slower
    assert schedule.digest() == slower.digest()
    other = _schedule(needed=np.ones(6, np.uint8))
    assert schedule != other
    assert schedule.digest() != other.digest()
    assert hash(schedule) == hash(slower)
    assert hash(schedule) != hash(other)


@pytest.mark.parametrize(("changes", "message"), [
    ({"first": np.array([0, 3, 6], np.int32)}, "first is int32 of shape"),
    ({"first": np.array([0, 6])}, "first has 2 elements: .* tiles need 3"),
    ({"second_ptr": np.array([0, 2, 6])}, "second_ptr has 3 elements: .* tiles need 5"),
    ({"second": np.arange(12, dtype=np.int32)[::2]}, "second is int32 of shape .* must be a contiguous list of int32"),
])
def test_arrays_of_wrong_type_or_size_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        _schedule(**changes)


def test_a_legal_schedule_passes():
    check_schedule(_schedule(), READS)


@pytest.mark.parametrize(("changes", "message"), [
    ({"first": np.array([0, 7, 6])}, "first does not rise from 0 to 6"),
    ({"second_ptr": np.array([0, 2, 4, 5, 5])}, "second_ptr does not rise from 0 to 6"),
    ({"second": np.array([0, 1, 3, 4, 2, 6], np.int32)}, "second holds 6: iterations are 0 to 5"),
    ({"second": np.array([0, 1, 3, 4, 2, 2], np.int32)}, "iteration 2 of loop two occurs 2 times"),
    ({"second": np.array([0, 2, 3, 4, 1, 5], np.int32)},
     "iteration 2 of loop two, in tile 0 of wavefront 0, reads iteration 3 of loop one, which is in tile 1"),
    ({"needed": np.array([0, 1, 1, 1, 0, 2], np.uint8)}, r"needed\[5\] is neither 0 nor 1"),
    ({"needed": np.array([1, 1, 1, 1, 0, 1], np.uint8)}, r"needed\[0\] is 1, but wavefront 1 reads it never"),
    ({"needed": np.array([0, 1, 1, 0, 0, 1], np.uint8)}, r"needed\[3\] is 0, but wavefront 1 reads it at least once"),
])
def test_illegal_schedules_are_rejected_with_the_reason(changes, message):
    with pytest.raises(IllegalSchedule, match=message):
        check_schedule(_schedule(**changes), READS)
