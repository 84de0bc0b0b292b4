"""Addresses of arrays, and arrays that kernels must not receive."""

import numpy as np
import pytest

from sparloom.jit import address, aligned
from sparloom.jit.native import _header_is_readable


@pytest.mark.parametrize("array", [
    np.empty(3, np.float32), np.empty((4, 5), np.float32)[2:], np.empty((0, 3), np.float32),
    np.empty(6, np.float32).reshape(2, 3).view(np.ndarray), np.memmap, aligned((3, 7), np.float32)])
def test_an_address_is_what_numpy_says(array, tmp_path):
    if array is np.memmap:
        array = np.memmap(tmp_path / "array", np.float32, "w+", shape=(5,))
    assert address(array) == array.ctypes.data == array.__array_interface__["data"][0]
    assert _header_is_readable()


def test_arrays_that_begin_at_pages():
    assert address(aligned((3, 7), np.float32)) % 4096 == 0


@pytest.mark.parametrize(("array", "message"), [
    (np.empty((4, 4), np.float32)[:, 1:], "not a contiguous array of float32: pass np.ascontiguousarray"),
    (np.empty(4), "an array of float64"), (np.empty(5, np.uint8)[1:].view(np.float32), "not a contiguous array")])
def test_arrays_that_a_kernel_cannot_read_are_refused(array, message):
    with pytest.raises(ValueError, match=message):
        address(array)


def test_results_must_be_writeable():
    array = np.empty(3, np.float32)
    array.flags.writeable = False
    assert address(array)
    with pytest.raises(ValueError, match="read-only"):
        address(array, written=True)
