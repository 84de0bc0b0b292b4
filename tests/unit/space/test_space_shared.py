"""Shared schedules and their 53 numbers."""

import numpy as np

from sparloom.space import ENCODED_WIDTH, SharedSchedule, encode

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
