"""Tensors as libraries take them that do not know bfloat16: by the bits of its numbers, as uint16.

Whether tensors hold what they held when something was made of them: by their content, which no writer can pass by.

Counts of writes cannot tell: fused optimisers, `tensor.data`, NumPy arrays on the same memory and others do not count.
"""

import ctypes
import secrets
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from sparloom.jit import address, compile_cpp

__all__ = ["Unchanged", "as_bits", "as_tensor", "content_of", "fingerprint", "fingerprint_of", "indices_of"]


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """View bfloat16 as uint16; other tensors as they are."""
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


def as_tensor(array: Any) -> torch.Tensor:
    """View an array that speaks DLPack as a tensor, uint16 as bfloat16."""
    tensor = torch.from_dlpack(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor


KEY_WORDS = 1044  # kKeyWords of kernels/cpu/fingerprint.cpp
PLAIN = (torch.Tensor, torch.nn.Parameter)
RESULT = ctypes.c_uint64 * 2
SAMPLE = 32  # blocks of 4 KiB of long index tensors that are read: a few microseconds


@dataclass(frozen=True)
class Unchanged:
    """What a tensor held when it was seen: equal for tensors that hold the same; None: there was no tensor."""

    content: Hashable

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> "Unchanged":
        """Remember the content of a dense tensor, as `content_of`, not the tensor."""
        return cls(content_of(tensor))


def fingerprint(arrays: Sequence[np.ndarray], *, sample: int = 0) -> tuple[int, int]:
    """Compute a fingerprint of arrays: 122 bits that differ if the bytes do, but for a chance below 2^-50.

    Fingerprints of two processes cannot be compared. It takes the time of reading the memory once, on one thread.

    Args:
        arrays: C-contiguous.
        sample: read at most about so many blocks of 4 KiB of each array, evenly spaced; 0: all of it.
    """
    places: list[int] = []
    for array in arrays:
        places += address(array, array.dtype.type), array.nbytes
    return _fingerprint(places, sample)


def fingerprint_of(tensors: Iterable[torch.Tensor], *, sample: int = 0) -> tuple[int, int]:
    """Compute a fingerprint of what dense tensors hold, as `fingerprint` does of arrays.

    Most calls of operations on small operands need one, so memory is read where it lies, without a view as an array.
    """
    places: list[int] = []
    arrays: list[np.ndarray] = []
    for tensor in tensors:
        if type(tensor) in PLAIN and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
            place, size = tensor.data_ptr(), tensor.nbytes
            if place or not size:
                places += place, size
                continue
        arrays.append(_array(tensor))
        places += address(arrays[-1], arrays[-1].dtype.type), arrays[-1].nbytes
    return _fingerprint(places, sample)


def content_of(tensor: torch.Tensor | None) -> Hashable:
    """Identify what a dense tensor holds now: equal for tensors of the same type, shape and bits, on any device.

    All of it is read; a tensor on a GPU is copied for that.
    """
    if tensor is None:
        return None
    return tensor.dtype, tensor.shape, fingerprint_of((tensor,))


def indices_of(*tensors: torch.Tensor) -> Hashable:
    """Identify what index tensors hold: by their counts of writes and, on the CPU, by up to 128 KiB of each.

    So writes that torch counts are seen, and of those that it does not count, all in tensors of up to 128 KiB, and
    the usual accident, a tensor that is filled anew, in longer ones. Tensors of inference mode have no count: all of
    them is read.
    """
    versions = tuple([None if tensor.is_inference() else tensor._version for tensor in tensors])
    counted = None not in versions
    if counted and not all([tensor.is_cpu for tensor in tensors]):
        return versions
    return versions, fingerprint_of(tensors, sample=SAMPLE if counted else 0)


def _fingerprint(places: list[int], sample: int) -> tuple[int, int]:
    """Compute the fingerprint of parts of the memory: address and bytes of each."""
    result = RESULT()
    _function()(_places(len(places))(*places), len(places) // 2, sample, _key()[0], result)
    return tuple(result)


def _array(tensor: torch.Tensor) -> np.ndarray:
    array = as_bits(tensor.detach()).numpy(force=True)
    return array if array.flags.c_contiguous and array.flags.aligned else np.require(array, requirements=["C", "A"])


@cache
def _key() -> tuple[int, np.ndarray]:
    """Draw the key of this process; gives its address, too."""
    key = np.frombuffer(secrets.token_bytes(4 * KEY_WORDS), np.uint32)
    return address(key, np.uint32), key


@cache
def _places(count: int) -> type[ctypes.Array]:
    return ctypes.c_int64 * count


@cache
def _function() -> Any:
    function = compile_cpp(["cpu/fingerprint.cpp"]).sparloom_fingerprint
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    return function
