"""NVIDIA GPUs as a backend: kernels under kernels/cuda, their libraries, rates and an estimate of seconds.

    seconds = max(warp instructions / rate, bytes / rate, latency * steps of the group that has most of them)

Rates are those of the device; the other constants are orders of magnitude from data sheets (A100 to H200), as estimates
only rank candidates.

Source: AutoSAGE's roofline-style estimate; its formula is not published, this one is ours. Status: docs/gpu_status.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.baselines import cusparse_spmm
from sparloom.errors import Unsupported
from sparloom.jit import cuda_text, kernels_digest
from sparloom.ops import Op, Operands
from sparloom.platforms import (
    CudaDevice,
    CudaPlatform,
    CupyGpu,
    DeviceKernels,
    DeviceMatrix,
    DevicePattern,
    Gpu,
)
from sparloom.platforms.cuda import BITS, LaunchShape, as_float32
from sparloom.space import CUDA_KERNELS, HUBS, Config, ConfigSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.machine import check_rates, device_digest, rates_summary, read_rates
from sparloom.tuning.racing import Call, Clock, Timer
from sparloom.tuning.sparse.backend import Library, Product, gathered_pieces
from sparloom.tuning.sparse.inputs import Origin, cuda_dense
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = [
    "CUDA_LIBRARIES", "CudaBackend", "CudaEstimate", "CudaRates", "cuda_rates", "gather_dot", "measure_cuda_rates",
]

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

CUDA_SOURCES = ("cuda/*.cu", "cuda/*.cuh")

WARP = 32  # threads
LATENCY = 1e-7  # seconds of a sequential step: a load takes 600 cycles of 1.5 GHz, four are in flight
OVERHEAD = 3.0  # instructions of a step besides loads and multiplications
SHARES = 1.1  # factor of equal shares, whose begins are searched and whose carries are added

MIN_SAMPLE_NONZEROS = 2_000_000  # fewer do not fill a large GPU, and kernels behave differently
EQUAL_SHARES = MappingProxyType({"balance": "nonzeros"})
BALANCE: Mapping[str, Mapping[str, str]] = {
    "spmm": EQUAL_SHARES, "spmm_mean": EQUAL_SHARES, "spmm_max": EQUAL_SHARES, "sddmm": EQUAL_SHARES,
    "attention": {"balance": "q95"}}
"""Operation -> changes of the default of the space: equal shares, or a block for each of the longest rows."""
READ: Mapping[str, tuple[str, ...]] = {
    "spmm": ("A", "X"), "spmm_mean": ("A", "X"), "spmm_max": ("A", "X"), "sddmm": ("A", "Q", "K"),
    "attention": ("Q", "K", "V")}
"""Operation -> operands that it reads, by their names in messages."""


def gather_dot(matrix: DeviceMatrix, threads: int) -> Product:
    """Gather a row of each dense operand for every nonzero, multiply and sum up, in float32.

    Source: AutoSAGE's baseline for SDDMM.
    """
    gpu, nnz = matrix.gpu, matrix.pattern.nnz
    rows, cols = gpu.upload(matrix.pattern.row_ids()), matrix.placed.indices

    def product(operands: Operands) -> Any:
        left, right = operands.dense["B"], operands.dense["C"]
        values, result = operands.matrix.values, gpu.empty((nnz,), np.float32)
        for piece in gathered_pieces(nnz, operands.width):
            result[piece] = (_floats(left[rows[piece]]) * _floats(right[cols[piece]])).sum(1)
        result *= values
        return result.astype(values.dtype, copy=False)

    return product


def _cusparse(matrix: DeviceMatrix, threads: int, *, algorithm: str) -> Product:
    return cusparse_spmm(matrix, algorithm)


CUDA_LIBRARIES: Mapping[str, Mapping[str, Library]] = MappingProxyType({
    "spmm": MappingProxyType({"cusparse": partial(_cusparse, algorithm="default"),
                              "cusparse_alg2": partial(_cusparse, algorithm="alg2")}),
    "sddmm": MappingProxyType({"gather_dot": gather_dot})})
"""Operation -> name -> library."""


def _floats(array: Any) -> Any:
    return array.astype(np.float32, copy=False)


class CudaBackend:
    """Kernels under kernels/cuda, timed by the events of the device; see `Backend`.

    Args:
        gpu: the current device of CuPy, or an emulated one.
        bits: as of `CudaArrays`.
    """

    threads, sources = 0, CUDA_SOURCES

    def __init__(
        self, gpu: Gpu, libraries: Mapping[str, Mapping[str, Library]] = CUDA_LIBRARIES, *, bits: bool = False,
    ) -> None:
        self.gpu, self.libraries, self.arrays = gpu, libraries, CudaArrays(gpu, bits=bits)

    @classmethod
    def here(cls, *, bits: bool = False) -> CudaBackend:
        """Return the backend of CuPy's current device, always the same object.

        Raises:
            Unsupported: there is no device, or CuPy is not installed; names the remedy.
        """
        return _backend(CupyGpu.current(), bits)

    def kernels(self, op: Op, width: int) -> DeviceKernels:
        return DeviceKernels(self.gpu, self._platform(op, width).family(op))

    def space(self, op: Op, width: int) -> ConfigSpace:
        return self._platform(op, width).space(op)

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List all configurations: samples are large here."""
        return list(self.space(op, operands.width))

    def default_config(self, op: Op, operands: Operands) -> Config:
        """Adapt the default of the space, with a balance that no matrix makes slow."""
        return self.space(op, operands.width).default().replace(**BALANCE[op.name])

    def launchable(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        """Compile kernels, and keep those that the device can launch; the first one must be among them."""
        kernels, kept = self.kernels(op, operands.width), []
        result = kernels.result(operands)
        for number, config in enumerate(configs):
            try:
                kernels.bind(operands, config, result)
            except Unsupported:
                if number == 0:
                    raise
                continue
            kept.append(config)
        return kept

    def portfolios(self, op: Op, operands: Operands) -> Sequence[Sequence[Config]]:
        """Return none: nothing was measured on a GPU."""
        return ()

    def binding_seconds(self, config: Config, pattern: Pattern) -> float:
        """Return 0: what kernels need of a pattern is made once for all of them."""
        return 0.0

    def kind(self, config: Config) -> str:
        """Name the balance; all thresholds of hubs are one kind."""
        balance = str(config["balance"]) if "balance" in config.names else ""
        return "hubs" if balance in HUBS else balance

    def model(self, cache: PlanCache) -> CudaEstimate:
        return CudaEstimate(cuda_rates(self.gpu, cache, self.signature()))

    def policy(self) -> CsrPolicy:
        """Sample more than on a CPU; the events of the device can time runs of any length."""
        return CsrPolicy(least_nonzeros=MIN_SAMPLE_NONZEROS, runs=math.inf, least_seconds=0.0)

    def timer(self, clock: Clock) -> Timer:
        def timed(call: Call, runs: int) -> float:
            repeat = self.gpu.repeat(call)
            return sum(repeat(0.0).wall for _ in range(runs)) / runs

        return timed

    def signature(self) -> Mapping[str, Any]:
        device = dict(self.gpu.signature())
        return {"threads": self.threads, "device": device, "machine": device_digest(device),
                "kernels": kernels_digest(CUDA_SOURCES)}

    def ones(self, pattern: Pattern) -> DeviceMatrix:
        """Copy a pattern to the device, with ones for values."""
        return self.matrix(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)))

    def matrix(self, matrix: SparseMatrix) -> DeviceMatrix:
        """Copy a matrix to the device."""
        return DeviceMatrix(self.gpu, DevicePattern.on(self.gpu, matrix.pattern), self.gpu.upload(matrix.values))

    def _platform(self, op: Op, width: int) -> CudaPlatform:
        platform = CudaPlatform(CUDA_KERNELS, "here", width)
        platform.gpu, platform.limits = self.gpu, self.gpu.device
        return platform


class CudaArrays:
    """Arrays in the memory of a GPU; see `Arrays`.

    Args:
        bits: arrays of uint16 hold the bits of bfloat16; otherwise they are refused.
    """

    def __init__(self, gpu: Gpu, *, bits: bool) -> None:
        self.gpu, self.bits = gpu, bits

    def take_rows(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Keep some rows of A with all their columns, gathered on the device; hubs are those of the whole matrix."""
        matrix, pattern = operands.matrix, operands.matrix.pattern
        nonzeros, part = pattern.nonzeros_of(rows), _rows_of(pattern, rows)
        placed = DevicePattern.on(self.gpu, part, matrix.placed.degrees)
        return Operands(DeviceMatrix(self.gpu, placed, self.gpu.take(matrix.values, nonzeros)), {
            name: self.gpu.take(array, rows) if name in Operands.of_rows(op) else array
            for name, array in operands.dense.items()})

    def gather_operands(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Copy some rows, and the columns they use, to the memory of the processor, as float32."""
        pattern = operands.matrix.pattern
        part = _rows_of(pattern, rows)
        used, columns = np.unique(part.indices, return_inverse=True)
        kept = {name: rows if name in Operands.of_rows(op) else used for name in operands.dense}
        values = self.gather_rows(operands.matrix.values, pattern.nonzeros_of(rows))
        dense = {name: self.gather_rows(array, kept[name]) for name, array in operands.dense.items()}
        return Operands(SparseMatrix(Pattern((part.rows, used.size), part.indptr, columns), values), {
            name: as_float32(array) for name, array in dense.items()})

    def gather_rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        """Copy some rows of a result to the memory of the processor; bfloat16 as float32."""
        found = self.gpu.download(self.gpu.take(result, rows))
        return as_float32(found) if found.dtype == BITS else found

    def dense(self, given: Any, name: str, *, rows: int, axes: int) -> Any:
        """Use a dense operand in place, or a copy on the device if it has gaps."""
        return cuda_dense(self.gpu, given, name, rows=rows, axes=axes, bits=self.bits)

    def array(self, given: Any, name: str) -> Any:
        return self.gpu.adopt(given, name)

    def dtype(self, op: str, operands: Operands) -> str:
        """Name the type of all numbers that an operation reads and writes: float32, float16 or bfloat16."""
        found = [self._named(array.dtype) for array in operands.dense.values()]
        if op != "attention":
            found.insert(0, self._named(operands.matrix.dtype))
        if len(set(found)) > 1:
            listed = ", ".join(f"{name} {dtype}" for name, dtype in zip(READ[op], found, strict=True))
            raise TypeError(f"operands are of several types, {listed}: convert them to one")
        return found[0]

    def promoted(self, matrix: DeviceMatrix | None, *dense: Any) -> tuple[Any, ...]:
        """Return them as they are: `dtype` refuses operands of several types."""
        return matrix, *dense

    def to_device(self, array: np.ndarray) -> Any:
        return self.gpu.upload(array)

    def multiply(self, one: Any, other: Any) -> Any:
        return one * other

    def check_out(
        self, out: Any, shape: tuple[int, ...], operands: Operands, inputs: Sequence[tuple[str, Any]], origin: Origin,
    ) -> Any:
        ours = self.gpu.adopt(out, "out", copies=False)
        dtype = next(iter(operands.dense.values())).dtype
        if ours.shape != shape or ours.dtype != dtype:
            raise ValueError(f"out is {ours.dtype} of shape {ours.shape}: it must be {dtype} of shape {shape}")
        placed = operands.matrix.placed
        used = ("indptr of A", placed.indptr), ("indices of A", placed.indices), ("values", operands.matrix.values)
        for name, array in (*inputs, *used, *origin.other_arrays()):
            if array is not None and self.gpu.overlap(ours, self.gpu.adopt(array, name)):
                raise ValueError(f"out lies in the memory of an operand, {name}: give another array")
        return ours

    def copy(self, result: Any, out: Any) -> None:
        out[...] = result

    def _named(self, dtype: np.dtype) -> str:
        return "bfloat16" if self.bits and dtype == BITS else dtype.name


@cache
def _backend(gpu: Gpu, bits: bool) -> CudaBackend:
    return CudaBackend(gpu, bits=bits)


def _rows_of(pattern: Pattern, rows: np.ndarray) -> Pattern:
    indptr = np.concatenate([[0], np.cumsum(pattern.row_lengths()[rows])])
    return Pattern((rows.size, pattern.cols), indptr, pattern.indices[pattern.nonzeros_of(rows)])


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
        """Estimate by the number of multiprocessors."""
        cycles = CLOCK * device.multiprocessors
        return cls(BYTES * cycles, FLOPS * MULTIPLICATIONS * cycles)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CudaRates:
        """Read the values of `dataclasses.asdict`, as `read_rates`."""
        return read_rates(cls, value, of="a GPU")

    @property
    def instructions(self) -> float:
        """Warp instructions per second."""
        return self.flops / FLOPS


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
    """Ranks configurations of the space cuda_kernels for one problem; parameters may be missing."""

    rates: CudaRates

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Estimate seconds, (configs,)."""
        lengths, number = _Lengths(operands.matrix.pattern), next(iter(operands.dense.values())).dtype.itemsize
        return np.array([self._seconds(_Mapping.of(op, config, operands.width, number_bytes=number), lengths)
                         for config in configs])

    def _seconds(self, mapping: _Mapping, lengths: _Lengths) -> float:
        issued = mapping.instructions * lengths.nnz * lengths.divergence(mapping) / self.rates.instructions
        moved = mapping.bytes * lengths.nnz / self.rates.memory
        serial = LATENCY * lengths.longest(mapping) * mapping.steps
        return max(issued, moved, serial) * (SHARES if mapping.balance == "nonzeros" else 1.0)


@dataclass(frozen=True)
class _Mapping:
    """Work of a configuration for one nonzero.

    Args:
        instructions: of warps, for all columns; a group of fewer lanes counts as a part of a warp.
        bytes: read for it, indices once for every tile of columns.
        steps: sequential steps of the group of a row.
        groups: per block.
        lanes: per group.
    """

    instructions: float
    bytes: float
    steps: float
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
        work = tiles * rows_read * loads * (1 + vector) + sums + OVERHEAD * passes / group
        return cls(
            instructions=work * lanes / WARP,
            bytes=float(number_bytes * rows_read * width + (4 + number_bytes) * passes),
            steps=(1 if product else tiles) / group, groups=max(1, WARP * number("warps", 4) // lanes),
            lanes=lanes, balance=str(config["balance"]) if "balance" in config.names else "rows")


class _Lengths:
    """Properties of a pattern that the estimate needs, each computed once."""

    def __init__(self, pattern: Pattern) -> None:
        self.nnz = max(1, pattern.nnz)
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
