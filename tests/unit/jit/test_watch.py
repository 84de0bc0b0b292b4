"""Changes of arrays are detected, and freed arrays are not read."""

import gc

import numpy as np
import pytest

from sparloom.jit import ChangeDetector

pytestmark = pytest.mark.cc
SOON = 32  # calls in which every element is looked at


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", [1, 31, 1024, 1025, 40_000, 200_000])
def test_a_change_of_any_element_is_detected_soon(size, dtype):
    array = np.arange(size, dtype=dtype)
    watch = ChangeDetector({"other": np.arange(3), "array": array})
    for calls in (0, 10):
        for place in {0, size // 3, size - 1}:
            assert not any(watch.changed() for _ in range(calls))
            array[place] += 1
            found = [watch.changed() for _ in range(SOON)]
            assert watch.name(max(found)) == "array"
            assert found[found.index(2):] == [2] * (SOON - found.index(2))
            array[place] -= 1
            assert watch.changed() == 0


def test_exchanged_elements_are_detected_by_the_first_calls():
    for first in range(64):
        array = np.arange(64, dtype=np.int32)
        watch = ChangeDetector({"array": array})
        array[[first, 63 - first]] = array[[63 - first, first]]
        assert watch.changed() == 1


def test_arrays_that_are_gone_or_cannot_be_watched_are_not():
    array = np.zeros(5000, np.int32)
    watch = ChangeDetector({"array": array, "gaps": np.zeros((8, 8), np.int32)[:, ::2], "floats": np.zeros(4),
                   "empty": array[:0]})
    assert watch.changed() == 0
    with pytest.raises(ValueError, match="resize"):
        array.resize(10**7, refcheck=False)
    del array
    gc.collect()
    assert watch.changed() == 0
