"""How fast a GPU moves and computes: measured once for each device, by the kernels of kernels/cuda/rates.cu."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import cuda_text
from sparloom.platforms import CudaDevice, Gpu
from sparloom.platforms.cuda import LaunchShape
from sparloom.tuning.plan_cache import PlanCache
from sparloom.tuning.rate_numbers import check_rates, read_rates

__all__ = ["CudaRates", "cuda_rates", "measure_cuda_rates"]

log = logging.getLogger(__name__)

CLOCK = 1.5e9  # cycles per second, of data sheets (A100 to H200), as the next two
BYTES = 15.0  # of memory per cycle and multiprocessor
MULTIPLICATIONS = 4  # of warps, per cycle and multiprocessor
FLOPS = 64  # of one of them: 32 threads multiply and add

THREADS = 256  # of a block
COPIED = 1 << 25  # floats, more than any L2 holds
STEPS = 1 << 12  # multiplications of a chain
CHAINS = 8  # of a thread, in rates.cu
RUNS = 5


@dataclass(frozen=True)
class CudaRates:
    """Of a whole device.

    Args:
        memory: bytes per second that a copy reads and writes.
        flops: per second, of multiplications and additions in registers.
    """

    memory: float
    flops: float

    def __post_init__(self) -> None:
        check_rates(self)

    @classmethod
    def of_data_sheet(cls, device: CudaDevice) -> CudaRates:
        """Guess by the number of multiprocessors."""
        cycles = CLOCK * device.multiprocessors
        return cls(BYTES * cycles, FLOPS * MULTIPLICATIONS * cycles)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CudaRates:
        """Read what `dataclasses.asdict` wrote, as `read_rates`."""
        return read_rates(cls, value, of="a GPU")

    @property
    def instructions(self) -> float:
        """Of warps per second."""
        return self.flops / FLOPS


def cuda_rates(gpu: Gpu, cache: PlanCache, key: Mapping[str, Any]) -> CudaRates:
    """Find the rates of a device, or measure and keep them; those of data sheets where that cannot be done.

    Args:
        key: what they depend on, `CudaPlace.signature`.
    """
    if cache.folder is None:
        return _in_process(gpu)
    found = cache.find_device_rates(key, CudaRates.from_json)
    if found is None:
        found = _measured(gpu)
        if found is None:
            return CudaRates.of_data_sheet(gpu.device)
        cache.keep_device_rates(key, asdict(found))
    return found


def measure_cuda_rates(gpu: Gpu) -> CudaRates:
    """Measure; takes some milliseconds, and the compilation of two kernels.

    Raises:
        MemoryError: the device has no room for what is copied.
        Unsupported: it cannot start the kernels.
    """
    device, text = gpu.device, cuda_text("cuda/rates.cu", {"THREADS": THREADS, "CHAINS": CHAINS})
    shape = LaunchShape((device.multiprocessors * (device.threads_per_multiprocessor // THREADS), 1), THREADS)
    threads = shape.grid[0] * THREADS
    copy, multiply = (gpu.kernel(text, name) for name in ("rates_copy", "rates_multiply"))
    refused = device.refuse(LaunchShape(shape.grid, THREADS, 0, max(copy.registers, multiply.registers)))
    if refused is not None:
        raise Unsupported(f"a launch needs {refused}")
    source, result = gpu.upload(np.zeros(COPIED, np.float32)), gpu.empty((max(COPIED, threads),), np.float32)
    copied = _seconds(gpu, lambda: copy(shape, (source, result, np.int64(COPIED))))
    computed = _seconds(gpu, lambda: multiply(shape, (result, np.int32(STEPS), np.float32(0.5), np.float32(1.0))))
    return CudaRates(2 * 4 * COPIED / copied, 2 * CHAINS * STEPS * threads / computed)


def _seconds(gpu: Gpu, call: Any) -> float:
    repeat = gpu.repeat(call)
    return min(repeat(0.0).wall for _ in range(1 + RUNS))


def _measured(gpu: Gpu) -> CudaRates | None:
    try:
        return measure_cuda_rates(gpu)
    except (MemoryError, Unsupported) as error:
        log.warning("rates of %s are not measured: %s: those of data sheets are taken", gpu.device.name, error)
        return None


@cache
def _in_process(gpu: Gpu) -> CudaRates:
    return _measured(gpu) or CudaRates.of_data_sheet(gpu.device)
