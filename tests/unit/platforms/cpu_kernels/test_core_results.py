"""Memory of results is reused once nothing refers to it, and not before."""

import gc

import numpy as np
import pytest
import torch

from sparloom.jit import address_of
from sparloom.platforms.cpu_kernels import empty_result, native_core
from sparloom.sparse import BFLOAT16

pytestmark = pytest.mark.skipif(native_core() is None, reason="the native core was not built")

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


@pytest.fixture(autouse=True)
def _without_dead_results() -> None:
    native_core().clear()


@pytest.mark.parametrize("hold", HOLDERS)
def test_memory_in_use_is_left_alone_and_reused_afterwards(hold):
    array = empty_result(SHAPE, np.float64)
    place, held = address_of(array), HOLDERS[hold](array)
    del array
    gc.collect(0)
    assert address_of(empty_result(SHAPE, np.float64)) != place
    del held
    gc.collect(0)
    assert place in {address_of(each) for each in [empty_result((32000, 4), np.float64) for _ in range(3)]}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16, np.int8, np.complex64], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (3,), (2, 3, 4), (300, 300)], ids=str)
def test_results_are_contiguous_arrays(shape, dtype):
    result = empty_result(shape, dtype)
    assert (result.shape, result.dtype) == (shape, np.dtype(dtype))
    assert result.flags.c_contiguous
    assert result.flags.writeable
    assert address_of(result) % 64 == 0


def test_impossible_sizes_are_refused():
    with pytest.raises(MemoryError):
        empty_result((2**40, 2**40), np.float32)
