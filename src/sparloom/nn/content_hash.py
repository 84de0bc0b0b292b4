"""Hash the contents of tensors, to detect that something prepared from them is out of date.

torch's version counters are not enough: fused optimisers, `tensor.data` and NumPy arrays on the same memory write
without incrementing them.
"""

import ctypes
import secrets
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from sparloom.jit import address, compile_cpp

KEY_WORDS = 1044  # kKeyWords of kernels/cpu/fingerprint.cpp
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
RESULT = ctypes.c_uint64 * 2
SAMPLED_BLOCKS = 32  # blocks of 4 KiB that are read of long index tensors, which takes a few microseconds

_KEY = np.frombuffer(secrets.token_bytes(4 * KEY_WORDS), np.uint32)  # of the hashes of this process
_KEY_ADDRESS = address(_KEY, np.uint32)


def content_hash(tensor: torch.Tensor | None) -> Hashable:
    """Hash a dense tensor: equal for tensors of equal dtype, shape and bits on any device; None for None.

    Reads the whole tensor; copies it to the CPU if it is on a GPU.
    """
    if tensor is None:
        return None
    return tensor.dtype, tensor.shape, fingerprint_tensors((tensor,))


def sampled_hash(*tensors: torch.Tensor, blocks: int = SAMPLED_BLOCKS) -> Hashable:
    """Hash tensors: their version counters and, on the CPU, some blocks of 4 KiB of each.

    Detects every write that torch counts. Of writes that torch does not count, it detects all in tensors of so many
    blocks, and the usual case, a tensor that is refilled, in longer ones. Inference tensors have no version counter, so
    they are read completely.
    """
    versions = tuple([None if tensor.is_inference() else tensor._version for tensor in tensors])
    counted = None not in versions
    if counted and not all([tensor.is_cpu for tensor in tensors]):
        return versions
    return versions, fingerprint_tensors(tensors, sample=blocks if counted else 0)


def fingerprint(arrays: Sequence[np.ndarray], *, sample: int = 0) -> tuple[int, int]:
    """Compute a 122-bit fingerprint of arrays; different bytes collide with a probability below 2^-50.

    Fingerprints are comparable within one process only. The cost is one single-threaded pass over the memory.

    Args:
        arrays: C-contiguous.
        sample: read at most about this many evenly spaced blocks of 4 KiB of each array; 0: read everything.
    """
    spans: list[int] = []
    for array in arrays:
        spans += address(array, array.dtype.type), array.nbytes
    return _fingerprint(_int64_array(len(spans))(*spans), sample)


def fingerprint_tensors(tensors: Iterable[torch.Tensor], *, sample: int = 0) -> tuple[int, int]:
    """Compute the fingerprint of dense tensors, like `fingerprint` for arrays.

    Most calls on small operands need one, so contiguous CPU tensors are read in place, without a NumPy view.
    """
    spans: list[int] = []
    arrays: list[np.ndarray] = []
    for tensor in tensors:
        if type(tensor) in PLAIN_TENSORS and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
            start, size = tensor.data_ptr(), tensor.nbytes
            if start or not size:
                spans += start, size
                continue
        arrays.append(contiguous_array(tensor))
        spans += address(arrays[-1], arrays[-1].dtype.type), arrays[-1].nbytes
    return _fingerprint(_int64_array(len(spans))(*spans), sample)


class SpanFingerprint:
    """The fingerprint of tensors that stay where they are.

    Args:
        tensors: contiguous, on the CPU. Their memory is kept, as another thread may give them other memory.
        sample: as of `fingerprint`.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], *, sample: int) -> None:
        self._kept = tensors = [tensor.detach() for tensor in tensors]
        spans = [number for tensor in tensors for number in (tensor.data_ptr(), tensor.nbytes)]
        self._spans, self._sample = _int64_array(len(spans))(*spans), sample
        self._value = self._compute()

    def unchanged(self) -> bool:
        """Compute it again and compare."""
        return self._compute() == self._value

    def _compute(self) -> tuple[int, int]:
        return _fingerprint(self._spans, self._sample)


def bfloat16_as_uint16(tensor: torch.Tensor) -> torch.Tensor:
    """View a bfloat16 tensor as uint16 for libraries without bfloat16; return other tensors unchanged."""
    return tensor.resolve_neg().view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


def tensor_from_dlpack(array: Any) -> torch.Tensor:
    """View a DLPack array as a tensor; uint16 becomes bfloat16."""
    tensor = torch.from_dlpack(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor


def _fingerprint(spans: ctypes.Array, sample: int) -> tuple[int, int]:
    """Compute the fingerprint of memory spans: address, bytes, address, bytes, ..."""
    result = RESULT()
    _function()(spans, len(spans) // 2, sample, _KEY_ADDRESS, result)
    return tuple(result)


def contiguous_array(tensor: torch.Tensor) -> np.ndarray:
    """View a tensor as a C-contiguous, aligned array; copies if it is not one."""
    array = bfloat16_as_uint16(tensor.detach()).numpy(force=True)
    return array if array.flags.c_contiguous and array.flags.aligned else np.require(array, requirements=["C", "A"])


@cache
def _int64_array(count: int) -> type[ctypes.Array]:
    return ctypes.c_int64 * count


@cache
def _function() -> Any:
    function = compile_cpp(["cpu/fingerprint.cpp"]).sparloom_fingerprint
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    return function
