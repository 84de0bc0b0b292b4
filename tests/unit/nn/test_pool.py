"""Memory comes back when nothing refers to it any more, and not before."""

import gc

import torch

from sparloom.nn.pool import Pool


def test_memory_of_a_dropped_tensor_is_used_again() -> None:
    pool = Pool()
    first = pool.empty((1000, 400), torch.float32)
    place = first.data_ptr()
    del first
    assert pool.empty((2000, 200), torch.float32).data_ptr() == place


def test_memory_in_use_is_left_alone() -> None:
    pool, places = Pool(), set()
    kept = []
    for hold in (lambda tensor: tensor[2:], lambda tensor: tensor.numpy(), lambda tensor: tensor.untyped_storage(),
                 lambda tensor: tensor.detach().view(-1)):
        tensor = pool.empty((64000, 2), torch.float64)
        places.add(tensor.data_ptr())
        kept.append(hold(tensor))
        del tensor
        gc.collect()
    fresh = pool.empty((64000, 2), torch.float64)
    assert len(places | {fresh.data_ptr()}) == 5


def test_empty_tensors_are_tensors() -> None:
    assert Pool().empty((0, 3), torch.float32).shape == (0, 3)
