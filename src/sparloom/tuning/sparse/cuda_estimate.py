"""Estimate of the seconds of kernels on a GPU, from its rates and the lengths of rows; it ranks candidates.

    terms = warp instructions / rate, bytes / rate, latency * steps of a group * groups / groups at a time,
            latency * steps of the group that has most of them
    seconds = the largest term + a tenth of all

A step waits for loads that are in flight together: of several columns, and of several nonzeros. Rates are those of the
device; the other constants are orders of magnitude, as estimates only rank candidates. They were chosen on samples of
an H200 (data/samples/cuda_*.parquet), on which narrow loads are slow because too few bytes are in flight.

Source: AutoSAGE's roofline-style estimate; its formula is not published, this one is ours. Status: docs/gpu_status.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import cuda_text
from sparloom.ops import Operands
from sparloom.platforms import CudaDevice, Gpu
from sparloom.platforms.cuda import MOST_SHARE, LaunchShape
from sparloom.space import HUBS, Config
from sparloom.sparse import Pattern
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.machine import StoredRates, rates_summary

log = logging.getLogger(__name__)

CUDA_SOURCES = ("cuda/*.cu", "cuda/*.cuh")

CLOCK = 1.5e9  # cycles per second, of data sheets (A100 to H200), as the next two
BYTES = 15.0  # of memory per cycle and multiprocessor
MULTIPLICATIONS = 4  # of warps, per cycle and multiprocessor
FLOPS = 64  # of one of them: 32 threads multiply and add

THREADS = 256  # of a block
COPIED = 1 << 25  # floats, more than any L2 holds
STEPS = 1 << 12  # multiplications of a chain
CHAINS = 8  # of a thread, in rates.cu
RUNS = 5

WARP = 32  # threads
LATENCY = 4e-7  # seconds of a step: a load takes 600 cycles of 1.5 GHz
IN_FLIGHT = 4  # nonzeros of SpMM whose loads are in flight together
SEARCH_STEP = 0.5  # steps that one step of a search for a row takes: its loads mostly hit a cache
RESIDENT, BLOCKS = 2048, 32  # most threads and blocks of a multiprocessor at a time
OTHERS = 0.1  # weight of the terms that are not the largest
OVERHEAD = 3.0  # instructions of a step besides loads and multiplications
NOT_FAVOURED = 1.5  # factor of configurations that are not favoured: less than a bad balance costs
SHARES = 1.1  # factor of equal shares, whose begins are searched and whose carries are added


@dataclass(frozen=True)
class CudaRates(StoredRates):
    """Of a whole device.

    Args:
        memory: bytes per second that a copy reads and writes.
        flops: per second, of multiplications and additions in registers.
    """

    memory: float
    flops: float

    owner = "a GPU"

    @classmethod
    def of_data_sheet(cls, device: CudaDevice) -> CudaRates:
        """Estimate by the number of multiprocessors."""
        cycles = CLOCK * device.multiprocessors
        return cls(BYTES * cycles, FLOPS * MULTIPLICATIONS * cycles)

    @property
    def instructions(self) -> float:
        """Warp instructions per second."""
        return self.flops / FLOPS

    @property
    def multiprocessors(self) -> float:
        """About so many, by their rate."""
        return self.instructions / (MULTIPLICATIONS * CLOCK)


def cuda_rates(gpu: Gpu, cache: PlanCache, key: Mapping[str, Any]) -> CudaRates:
    """Look up the rates of a device, or measure and store them; those of data sheets if they cannot be measured.

    Args:
        key: `CudaBackend.signature`.
    """
    if cache.folder is None:
        return _in_process(gpu)
    found = cache.get("rates", key, CudaRates.from_json)
    if found is None:
        found = _measured(gpu)
        if found is None:
            return CudaRates.of_data_sheet(gpu.device)
        cache.put("rates", key, asdict(found), summary=rates_summary(found, CUDA_SOURCES))
    return found


def measure_cuda_rates(gpu: Gpu) -> CudaRates:
    """Measure, in some milliseconds and the compilation of two kernels.

    Raises:
        MemoryError: the copied arrays do not fit on the device.
        Unsupported: the device cannot launch the kernels.
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
        log.warning("rates of %s are not measured: %s: those of data sheets are used", gpu.device.name, error)
        return None


@cache
def _in_process(gpu: Gpu) -> CudaRates:
    return _measured(gpu) or CudaRates.of_data_sheet(gpu.device)


@dataclass(frozen=True)
class CudaEstimate:
    """Ranks configurations of the space cuda_kernels for one problem; parameters may be missing.

    Args:
        favoured: operation -> keys of configurations that rank above others, unless the formula is strongly against
            them: it seldom tells similar ones apart, so those that were measured to be good come first.
    """

    rates: CudaRates
    favoured: Mapping[str, Collection[str]] = field(default_factory=dict)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Estimate seconds, (configs,), longer for configurations that are not favoured."""
        lengths, number = _Lengths(operands.matrix.pattern), next(iter(operands.dense.values())).dtype.itemsize
        seconds = np.array([self._seconds(_Mapping.of(op, config, operands.width, number_bytes=number), lengths)
                            for config in configs])
        favoured = self.favoured.get(op)
        return seconds if not favoured else seconds * np.array(
            [1.0 if config.key in favoured else NOT_FAVOURED for config in configs])

    def _seconds(self, mapping: _Mapping, lengths: _Lengths) -> float:
        divergence = lengths.divergence(mapping)
        issued = mapping.instructions * lengths.nnz * divergence / self.rates.instructions
        moved = mapping.bytes * lengths.nnz / self.rates.memory
        waits = mapping.passes * mapping.steps + mapping.search_steps(lengths.rows)
        waited = LATENCY * waits * lengths.nnz * divergence / (mapping.resident * self.rates.multiprocessors)
        serial = LATENCY * lengths.longest(mapping) * mapping.steps
        terms = (issued, moved, waited, serial)
        return (max(terms) + OTHERS * sum(terms)) * (SHARES if mapping.balance == "nonzeros" else 1.0)


@dataclass(frozen=True)
class _Mapping:
    """Work of a configuration for one nonzero.

    Args:
        instructions: of warps, for all columns; a group of fewer lanes counts as a part of a warp.
        bytes: read for it, indices once for every tile of columns.
        passes: over the nonzeros, by groups of their own.
        steps: of a group in one pass.
        searches: of rows.
        groups: per block.
        lanes: per group.
    """

    instructions: float
    bytes: float
    passes: int
    steps: float
    searches: float
    groups: int
    lanes: int
    balance: str

    @classmethod
    def of(cls, op: str, config: Config, width: int, *, number_bytes: int) -> _Mapping:
        def number(name: str, default: int) -> int:
            return int(config[name]) if name in config.names else default

        lanes, vector, loads, group = number("lanes", WARP), number("vector", 1), number("loads", 1), number("group", 1)
        columns = lanes * vector * loads
        tiles = -(-width // columns)
        product = op.startswith("spmm")
        rows_read, sums = 2 if op == "attention" else 1, 0.0 if product else np.log2(lanes)
        passes = tiles if product else 1
        balance = str(config["balance"]) if "balance" in config.names else "rows"
        work = tiles * rows_read * loads * (1 + vector) + sums + OVERHEAD * passes / group
        return cls(
            instructions=work * lanes / WARP,
            bytes=float(number_bytes * rows_read * width + (4 + number_bytes) * passes),
            passes=passes, steps=1 / IN_FLIGHT if product else rows_read * tiles / group,
            searches=1 / MOST_SHARE if op == "sddmm" and balance == "nonzeros" else 0.0,
            groups=max(1, WARP * number("warps", 4) // lanes), lanes=lanes, balance=balance)

    @property
    def resident(self) -> float:
        """Groups of a multiprocessor at a time."""
        return min(RESIDENT / self.lanes, float(BLOCKS * self.groups))

    def search_steps(self, rows: int) -> float:
        """Steps of searches for rows."""
        return SEARCH_STEP * self.searches * math.log2(rows + 1)


class _Lengths:
    """Properties of a pattern that the estimate needs, each computed once."""

    def __init__(self, pattern: Pattern) -> None:
        self.nnz, self.rows = max(1, pattern.nnz), pattern.rows
        self._all = pattern.row_lengths()
        self._divergence: dict[tuple[int, int], float] = {}

    @cached_property
    def _filled(self) -> np.ndarray:
        return np.sort(self._all[self._all > 0])

    def threshold(self, balance: str) -> int:
        """Minimum nonzeros of a hub row; more than any row has if there are no hubs."""
        most = int(self._all.max(initial=0)) + 1
        if balance not in HUBS or not self._filled.size:
            return most
        return int(min(most, max(128, self._filled[int(0.01 * int(balance[1:]) * (self._filled.size - 1))])))

    def divergence(self, mapping: _Mapping) -> float:
        """Steps of warps over nonzeros: the rows of a warp wait for the longest one."""
        rows = WARP // mapping.lanes
        if mapping.balance == "nonzeros" or rows <= 1:
            return 1.0
        limit = self.threshold(mapping.balance)
        if (rows, limit) not in self._divergence:
            short = np.where(self._all < limit, self._all, 0)
            filled = np.concatenate([short, np.zeros(-short.size % rows, np.int64)]).reshape(-1, rows)
            waited = rows * filled.max(axis=1, initial=0).sum() + (self._all.sum() - short.sum())
            self._divergence[rows, limit] = float(waited / self.nnz)
        return self._divergence[rows, limit]

    def longest(self, mapping: _Mapping) -> float:
        """Nonzeros that one group processes sequentially."""
        if mapping.balance == "nonzeros":
            return 1.0
        limit = self.threshold(mapping.balance)
        most = float(self._all.max(initial=0))
        alone = float(self._all[self._all < limit].max(initial=0))
        return max(alone, most / mapping.groups) if most >= limit else most
