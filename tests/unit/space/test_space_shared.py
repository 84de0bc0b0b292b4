"""Shared schedules and their 53 numbers."""

import numpy as np
import pytest

from sparloom.space import ENCODED_WIDTH, K2, K3, LOOPS, SharedSchedule, encode, insert_after

ORDER = (6, 7, 2, 4, 1, 3, 5)


def test_vector_has_53_numbers() -> None:
    assert ENCODED_WIDTH == 53
    vector = encode(SharedSchedule(4, 1024, 32, 1, ORDER))
    assert vector.shape == (53,)
    assert vector.dtype == np.float32


def test_permutation_has_a_row_per_loop_and_a_column_per_position() -> None:
    permutation = encode(SharedSchedule(4, 1024, 32, 1, ORDER))[:49].reshape(7, 7)
    assert permutation.sum() == 7
    for position, loop in enumerate(ORDER):
        assert permutation[loop - 1, position] == 1


def test_extents_are_logarithms_over_sixteen() -> None:
    assert encode(SharedSchedule(4, 1024, 32, 1, ORDER))[49:].tolist() == [2 / 16, 10 / 16, 5 / 16, 0]


def test_raw_extents_are_unchanged() -> None:
    assert encode(SharedSchedule(4, 1024, 32, 8, ORDER), "raw")[49:].tolist() == [4, 1024, 32, 8]


def test_insert_after_puts_a_loop_right_inside_its_anchor() -> None:
    assert insert_after((6, 2, 4, 1, 3, 5), K2, K3) == ORDER


def test_loops_are_numbered_as_in_appendix_e() -> None:
    assert LOOPS == ("i1", "i2", "j1", "j2", "k1", "k2", "k3")


def test_extent_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="extent J = 0 of a shared schedule is below 1"):
        SharedSchedule(4, 0, 32, 1, ORDER)


@pytest.mark.parametrize("order", [(1, 2, 3), (1, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4, 5, 6)])
def test_order_that_is_no_permutation_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"is not a permutation of the loop numbers 1\.\.7"):
        SharedSchedule(4, 4, 4, 1, order)
