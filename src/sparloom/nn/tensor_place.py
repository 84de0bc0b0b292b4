"""How tensors of a device get to the kernels there, and results back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from sparloom.nn.bits import as_bits, as_tensor
from sparloom.nn.cuda_rivals import CUDA_SPARSE_LIBRARIES
from sparloom.nn.device_places import DevicePlaces
from sparloom.nn.rivals import SPARSE_LIBRARIES
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.sparse import CudaBackend, Prepared

__all__ = ["CpuTensors", "CudaTensors", "TensorPlace", "tensors_on"]


class TensorPlace(Protocol):
    """A device of torch.

    Args:
        device: of tensors and results.
    """

    device: torch.device

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Make a pattern ready there, with ones for values; nothing of the tensors it came from is kept."""

    def array(self, tensor: torch.Tensor) -> Any:
        """Give a tensor as prepared matrices take it, a copy only where its numbers are negated when they are read."""

    def run(self, product: Callable[[], Any]) -> torch.Tensor:
        """Compute after what torch computes there, and view the result as a tensor."""

    def run_both(self, product: Callable[[], tuple[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Do as `run` for two results."""

    def places(self, pattern: Pattern) -> DevicePlaces | None:
        """Take what computes with places of maxima; None where kernels of `sparloom.nn.at_places` do."""


class CpuTensors:
    """The processor."""

    device = torch.device("cpu")

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Make a pattern ready."""
        ones = SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))
        return Prepared(ones, threads=threads, libraries=SPARSE_LIBRARIES)

    def array(self, tensor: torch.Tensor) -> np.ndarray:
        """View a tensor as an array."""
        return tensor.numpy(force=True)

    def run(self, product: Callable[[], np.ndarray]) -> torch.Tensor:
        """Compute."""
        return torch.from_numpy(product())

    def run_both(self, product: Callable[[], tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute."""
        first, second = product()
        return torch.from_numpy(first), torch.from_numpy(second)

    def places(self, pattern: Pattern) -> None:
        """There are kernels."""


class CudaTensors:
    """An NVIDIA GPU, the current device of CuPy.

    Args:
        where: the same as decisions know it, with bits of bfloat16.
        stream: gives the address of torch's current stream, on which kernels run, too.
    """

    def __init__(self, device: torch.device, where: CudaBackend, stream: Callable[[], int]) -> None:
        self.device, self._where, self._stream = device, where, stream

    def prepared(self, pattern: Pattern, threads: int) -> Prepared:
        """Copy a pattern to the device; threads do not matter there."""
        return Prepared(self._where.ones(pattern), libraries=CUDA_SPARSE_LIBRARIES, where=self._where)

    def array(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take a tensor out of what autograd follows: it speaks DLPack."""
        return as_bits(tensor.detach().resolve_neg())

    def run(self, product: Callable[[], Any]) -> torch.Tensor:
        """Compute on torch's stream; the tensor keeps CuPy's array alive."""
        with self._where.gpu.following(self._stream()):
            return as_tensor(product())

    def run_both(self, product: Callable[[], tuple[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Do as `run`."""
        with self._where.gpu.following(self._stream()):
            first, second = product()
            return as_tensor(first), as_tensor(second)

    def places(self, pattern: Pattern) -> DevicePlaces:
        """Copy the columns to the device."""
        return DevicePlaces(torch.from_numpy(pattern.indices).to(self.device, torch.int64), pattern.cols)


def tensors_on(device: torch.device) -> TensorPlace:
    """Take a device.

    Raises:
        Unsupported: it is a GPU, and CuPy is missing; names the remedy.
    """
    if device.type == "cpu":
        return CpuTensors()
    return CudaTensors(device, CudaBackend.here(bits=True), lambda: torch.cuda.current_stream(device).cuda_stream)
