"""Whether tensors hold what they held when something was made of them: by their content, which no writer can pass by.

Counts of writes cannot tell: fused optimisers, `tensor.data`, NumPy arrays on the same memory and others do not count.
"""

import ctypes
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from sparloom.jit import address, compile_cpp
from sparloom.nn.bits import as_bits

__all__ = ["Unchanged", "content_of", "fingerprint", "indices_of", "version_of"]

KEY_WORDS = 1044  # kKeyWords of kernels/cpu/fingerprint.cpp
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
    result = (ctypes.c_uint64 * 2)()
    function, key, kind = _function(), _key(), _places(len(places))
    function(kind(*places), len(arrays), sample, key[0], result)
    return result[0], result[1]


def content_of(tensor: torch.Tensor | None) -> Hashable:
    """Identify what a dense tensor holds now: equal for tensors of the same type, shape and bits, on any device.

    All of it is read; a tensor on a GPU is copied for that.
    """
    if tensor is None:
        return None
    return tensor.dtype, tensor.shape, fingerprint([_array(tensor)])


def indices_of(*tensors: torch.Tensor) -> Hashable:
    """Identify what index tensors hold: by their counts of writes and, on the CPU, by up to 128 KiB of each.

    So writes that torch counts are seen, and of those that it does not count, all in tensors of up to 128 KiB, and
    the usual accident, a tensor that is filled anew, in longer ones. Tensors of inference mode have no count: all of
    them is read.
    """
    versions = tuple(map(version_of, tensors))
    if all(tensor.device.type == "cpu" for tensor in tensors) or None in versions:
        return versions, fingerprint([_array(each) for each in tensors], sample=0 if None in versions else SAMPLE)
    return versions


def version_of(tensor: torch.Tensor) -> int | None:
    """Count the writes into a dense tensor, as far as torch does; None where it does not count."""
    return None if tensor.is_inference() else tensor._version


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
