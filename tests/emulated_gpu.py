"""Emulated GPU with separate memory; kernels are compiled on first use."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from cuda_emulator import Emulator

from sparloom.platforms import Repeat, Repetition
from sparloom.platforms.cuda import CudaDevice

__all__ = ["EmulatedGpu", "Foreign", "OnDevice", "SharedMemory", "WallClock"]


class OnDevice(np.ndarray):
    """Array that claims to be on a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Foreign:
    """An array of another library on the GPU."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.view(OnDevice)
        self.shape, self.ndim = array.shape, array.ndim

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.view(np.ndarray).copy().__dlpack__()  # a copy for the processor, as CuPy makes one

    def __getitem__(self, place: Any) -> "Foreign":
        return Foreign(self.array[place])


class EmulatedGpu(Emulator):
    """A GPU for decisions.

    Args:
        folder: of compiled kernels.
        driver: that it says it has.
    """

    def __init__(self, folder: Path, device: CudaDevice | None = None, *, driver: int = 12040) -> None:
        self.device = device or CudaDevice.named("h200")
        self.driver = driver
        self.launched = 0
        self._folder = folder
        self._compiled: dict[str, Emulator] = {}

    def upload(self, array: np.ndarray) -> np.ndarray:
        return np.array(array).view(OnDevice)

    def download(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array).view(np.ndarray)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return super().empty(shape, dtype).view(OnDevice)

    def adopt(self, array: Any, name: str, *, copies: bool = True) -> np.ndarray:
        found = array.array if isinstance(array, Foreign) else array
        if not isinstance(found, OnDevice):
            raise TypeError(f"{name} is {type(array).__name__}, not on the GPU: pass cupy.asarray({name})")
        if found.flags.c_contiguous:
            return found
        if not copies:
            raise ValueError(f"{name} has gaps: give an array of its own")
        return np.ascontiguousarray(found).view(OnDevice)

    def take(self, array: np.ndarray, places: np.ndarray) -> np.ndarray:
        return array[places]

    def overlap(self, one: np.ndarray, other: np.ndarray) -> bool:
        return np.may_share_memory(one, other)

    def signature(self) -> dict[str, str | int]:
        return {"name": self.device.name, "compute_capability": self.device.compute_capability, "driver": self.driver,
                "cuda": 12040}

    def following(self, stream: int) -> nullcontext:
        return nullcontext()

    def kernel(self, text: str, name: str) -> Any:
        self.launched += 1
        body = text.replace(next((line for line in text.splitlines() if line.startswith("#define THREADS")), "-"), "")
        if body not in self._compiled:
            folder = self._folder / str(len(self._compiled))
            folder.mkdir(parents=True)
            self._compiled[body] = Emulator([text], folder, self.device)
        return self._compiled[body].kernel(text, name)


class SharedMemory(EmulatedGpu):
    """An emulated GPU whose memory is that of the processor, so that tensors of the CPU are on it."""

    def upload(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return Emulator.empty(self, shape, dtype)

    def adopt(self, array: Any, name: str, *, copies: bool = True) -> np.ndarray:
        assert not getattr(array, "requires_grad", False), f"{name} is followed by autograd"
        return np.ascontiguousarray(np.from_dlpack(array))


class WallClock:
    """Seconds of the host, above 0, for an emulated GPU."""

    def repeat(self, call: Callable[[], None]) -> Repeat:
        def timed(_: float) -> Repetition:
            start = time.perf_counter()
            call()
            return Repetition(*2 * [max(time.perf_counter() - start, 1e-9)])
        return timed
