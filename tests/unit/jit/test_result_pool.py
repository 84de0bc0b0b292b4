"""Memory of results is reused once nothing refers to it, and not before."""

import gc
import sys

import numpy as np
import pytest
import torch

from sparloom.jit import ResultPool, address

HOLDERS = {
    "array": lambda array: array,
    "part": lambda array: array[2:],
    "other shape": lambda array: array.reshape(-1)[::7],
    "memoryview": memoryview,
    "tensor": torch.from_numpy,
    "part of a tensor": lambda array: torch.from_numpy(array).detach().view(-1)[5:],
    "storage": lambda array: torch.from_numpy(array).untyped_storage(),
    "capsule": lambda array: array.__dlpack__(),
    "other library": lambda array: torch.from_dlpack(array),
}
SHAPE = (64000, 2)


def test_memory_of_a_dropped_result_is_used_again():
    pool = ResultPool(1)
    first = pool.empty((1000, 400), np.float32)
    place = address(first)
    del first
    again = pool.empty((2000, 200), np.float32)
    assert address(again) == place
    assert again.shape == (2000, 200)


@pytest.mark.parametrize("hold", HOLDERS)
def test_memory_in_use_is_left_alone(hold):
    pool = ResultPool(1)
    array = pool.empty(SHAPE, np.float64)
    place, held = address(array, np.float64), HOLDERS[hold](array)
    del array
    gc.collect(0)
    assert address(pool.empty(SHAPE, np.float64), np.float64) != place
    del held
    gc.collect(0)
    assert place in {address(each, np.float64) for each in (pool.empty(SHAPE, np.float64) for _ in range(3))}


def test_results_of_a_loop_alternate_between_two_buffers():
    pool, places, result = ResultPool(1), [], None
    for _ in range(6):
        result = pool.empty(SHAPE, np.float32)
        places.append(address(result))
    assert len(set(places)) == 2
    assert places[::2] == [places[0]] * 3


def test_the_pool_keeps_at_most_its_share(monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    pool = ResultPool(0.5)  # two results
    held = [pool.empty(SHAPE, np.float64) for _ in range(4)]
    owners = [array.base for array in held]
    del held
    pool.empty((300000, 2), np.float64)  # more than all of it: none of its business
    holders = [sys.getrefcount(owner) for owner in owners]
    assert [count - holders[0] for count in holders] == [0, 0, 1, 1]


def test_the_oldest_of_many_results_are_dropped():
    pool = ResultPool(1)
    held = [pool.empty(SHAPE, np.float32) for _ in range(40)]
    holders = [sys.getrefcount(array.base) for array in held]
    assert [count - holders[0] for count in holders] == [0] * 8 + [1] * 32


def test_cleared_results_are_dropped():
    pool = ResultPool(1)
    owner = pool.empty(SHAPE, np.float64).base
    before = sys.getrefcount(owner)
    pool.clear()
    assert sys.getrefcount(owner) < before


def test_empty_and_small_results_are_arrays():
    assert ResultPool(1).empty((0, 3), np.float32).shape == (0, 3)
    assert address(ResultPool(1).empty((3, 3), np.float32)) % 4096 == 0
