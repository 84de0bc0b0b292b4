"""An NVIDIA GPU as the place of a sparse matrix.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import kernel_source
from sparloom.ops import Op, Operands
from sparloom.platforms import CudaPlatform, CupyGpu, DeviceKernels, DeviceMatrix, DevicePattern, Gpu
from sparloom.platforms.cuda.operands import BITS, widened
from sparloom.space import CUDA_KERNELS, HUBS, Config, ConfigSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.plan_cache import PlanCache
from sparloom.tuning.racing import Call, Clock, Timer
from sparloom.tuning.sparse.cuda_estimate import CudaEstimate
from sparloom.tuning.sparse.cuda_given import cuda_dense
from sparloom.tuning.sparse.cuda_rates import cuda_rates
from sparloom.tuning.sparse.cuda_rivals import CUDA_LIBRARIES
from sparloom.tuning.sparse.decide import CsrPolicy
from sparloom.tuning.sparse.origin import Origin
from sparloom.tuning.sparse.rivals import Library

__all__ = ["CudaPlace", "cuda_kernels_digest", "cuda_machine_digest", "cuda_machines_here"]

LEAST_NONZEROS = 2_000_000  # of a sample: fewer do not fill a large GPU, and kernels behave otherwise
SHARES = MappingProxyType({"balance": "nonzeros"})
SAFE: Mapping[str, Mapping[str, str]] = {
    "spmm": SHARES, "spmm_mean": SHARES, "spmm_max": SHARES, "sddmm": SHARES, "attention": {"balance": "q95"}}
"""Operation -> what is other than in the default of the space: equal shares, or a block for each of the longest rows,
so that no matrix makes it slow."""
READ: Mapping[str, tuple[str, ...]] = {
    "spmm": ("A", "X"), "spmm_mean": ("A", "X"), "spmm_max": ("A", "X"), "sddmm": ("A", "Q", "K"),
    "attention": ("Q", "K", "V")}
"""Operation -> operands whose numbers it reads, as its callers name them."""


class CudaPlace:
    """Arrays in the memory of a GPU, kernels under kernels/cuda, seconds of the device's events; see `Place`.

    Args:
        gpu: the current device of CuPy, or an emulated one.
        bits: arrays of uint16 hold the bits of bfloat16; they are refused otherwise.
    """

    threads = 0

    def __init__(
        self, gpu: Gpu, libraries: Mapping[str, Mapping[str, Library]] = CUDA_LIBRARIES, *, bits: bool = False,
    ) -> None:
        self.gpu, self.libraries, self.bits = gpu, libraries, bits

    @classmethod
    def here(cls, *, bits: bool = False) -> CudaPlace:
        """Take the current device of CuPy, the same object each time.

        Raises:
            Unsupported: there is none, or CuPy is missing; names the remedy.
        """
        return _place(CupyGpu.current(), bits)

    def kernels(self, op: Op, width: int) -> DeviceKernels:
        """Give kernels of an operation."""
        return DeviceKernels(self.gpu, self._platform(op, width).family(op))

    def space(self, op: Op, width: int) -> ConfigSpace:
        """Give the space of these kernels."""
        return self._platform(op, width).space(op)

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List its configurations, all: samples are large here."""
        return list(self.space(op, operands.width))

    def safe(self, op: Op, operands: Operands) -> Config:
        """Take the default, rows shared so that no matrix makes it slow."""
        return self.space(op, operands.width).default().replace(**SAFE[op.name])

    def able(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        """Compile kernels, and keep those that the device can start; the first one must be among them."""
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
        """Give none: nothing was measured on a GPU."""
        return ()

    def binding_seconds(self, config: Config, pattern: Pattern) -> float:
        """Take all as cheap: what kernels need of a pattern is made once for all of them."""
        return 0.0

    def kind(self, config: Config) -> str:
        """Name the way of sharing rows: all thresholds of hubs are one."""
        balance = str(config["balance"]) if "balance" in config.names else ""
        return "hubs" if balance in HUBS else balance

    def model(self, cache: PlanCache) -> CudaEstimate:
        """Estimate by rates of this device."""
        return CudaEstimate(cuda_rates(self.gpu, cache, self.signature()))

    def policy(self) -> CsrPolicy:
        """Take larger samples than on a CPU; however short a run is, the device's clock can tell it."""
        return CsrPolicy(least_nonzeros=LEAST_NONZEROS, runs=math.inf, least_seconds=0.0)

    def timer(self, clock: Clock) -> Timer:
        """Time by the device's events, each run with a cold L2."""
        def timed(call: Call, runs: int) -> float:
            repeat = self.gpu.repeat(call)
            return sum(repeat(0.0).wall for _ in range(runs)) / runs

        return timed

    def signature(self) -> Mapping[str, Any]:
        """Name the device with its software, and the kernels."""
        device = dict(self.gpu.signature())
        return {"threads": self.threads, "device": device, "machine": cuda_machine_digest(device),
                "kernels": cuda_kernels_digest()}

    def ones(self, pattern: Pattern) -> DeviceMatrix:
        """Copy a pattern to the device, with ones for values."""
        return self.matrix(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)))

    def matrix(self, matrix: SparseMatrix) -> DeviceMatrix:
        """Copy a matrix to the device."""
        return DeviceMatrix(self.gpu, DevicePattern.on(self.gpu, matrix.pattern), self.gpu.upload(matrix.values))

    def take_rows(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Keep some rows of A with all their columns, gathered on the device; hubs are those of all rows."""
        matrix, pattern = operands.matrix, operands.matrix.pattern
        places, part = pattern.nonzeros_of(rows), _rows_of(pattern, rows)
        placed = DevicePattern.on(self.gpu, part, matrix.placed.degrees)
        return Operands(DeviceMatrix(self.gpu, placed, self.gpu.take(matrix.values, places)), {
            name: self.gpu.take(array, rows) if name in Operands.of_rows(op) else array
            for name, array in operands.dense.items()})

    def few(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Copy some rows, and what they use, to the memory of the processor, as float32."""
        pattern = operands.matrix.pattern
        part = _rows_of(pattern, rows)
        used, columns = np.unique(part.indices, return_inverse=True)
        kept = {name: rows if name in Operands.of_rows(op) else used for name in operands.dense}
        values = self.some(operands.matrix.values, pattern.nonzeros_of(rows))
        dense = {name: self.some(array, kept[name]) for name, array in operands.dense.items()}
        return Operands(SparseMatrix(Pattern((part.rows, used.size), part.indptr, columns), values), {
            name: widened(array) for name, array in dense.items()})

    def some(self, result: Any, places: np.ndarray) -> np.ndarray:
        """Copy some rows of a result to the memory of the processor; bfloat16 as float32."""
        found = self.gpu.download(self.gpu.take(result, places))
        return widened(found) if found.dtype == BITS else found

    def dense(self, given: Any, name: str, *, rows: int, axes: int) -> Any:
        """Take a dense operand where it lies; a copy on the device where it has gaps."""
        return cuda_dense(self.gpu, given, name, rows=rows, axes=axes, bits=self.bits)

    def array(self, given: Any, name: str) -> Any:
        """Take an array of any type and shape where it lies."""
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

    def spread(self, array: np.ndarray) -> Any:
        """Copy an array to the device."""
        return self.gpu.upload(array)

    def times(self, one: Any, other: Any) -> Any:
        """Multiply on the device."""
        return one * other

    def check_out(
        self, out: Any, shape: tuple[int, ...], operands: Operands, inputs: Sequence[tuple[str, Any]], origin: Origin,
    ) -> Any:
        """Take an array for the result."""
        ours = self.gpu.adopt(out, "out", copies=False)
        dtype = next(iter(operands.dense.values())).dtype
        if ours.shape != shape or ours.dtype != dtype:
            raise ValueError(f"out is {ours.dtype} of shape {ours.shape}: it must be {dtype} of shape {shape}")
        placed = operands.matrix.placed
        used = ("indptr of A", placed.indptr), ("indices of A", placed.indices), ("values", operands.matrix.values)
        for name, array in (*inputs, *used, *origin.elsewhere()):
            if array is not None and self.gpu.overlap(ours, self.gpu.adopt(array, name)):
                raise ValueError(f"out lies in the memory of an operand, {name}: give another array")
        return ours

    def copy(self, result: Any, out: Any) -> None:
        """Copy a result of a library on the device."""
        out[...] = result

    def _named(self, dtype: np.dtype) -> str:
        return "bfloat16" if self.bits and dtype == BITS else dtype.name

    def _platform(self, op: Op, width: int) -> CudaPlatform:
        platform = CudaPlatform(CUDA_KERNELS, "here", width)
        platform.gpu, platform.limits = self.gpu, self.gpu.device
        return platform


def cuda_machines_here() -> frozenset[str]:
    """Hash the current device as `cuda_machine_digest` does; empty where there is none."""
    try:
        return frozenset({cuda_machine_digest(CupyGpu.current().signature())})
    except Unsupported:
        return frozenset()


def cuda_machine_digest(device: Mapping[str, Any]) -> str:
    """Hash a device with its software, as `Gpu.signature` names them."""
    return hashlib.sha256(json.dumps(dict(device), sort_keys=True).encode()).hexdigest()


@cache
def cuda_kernels_digest() -> str:
    """Hash all sources under kernels/cuda."""
    folder = kernel_source("cuda/spmm.cu").parent
    content = hashlib.sha256()
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        content.update(f"{path.name}\n{path.read_text(encoding='utf-8')}\n".encode())
    return content.hexdigest()


@cache
def _place(gpu: Gpu, bits: bool) -> CudaPlace:
    return CudaPlace(gpu, bits=bits)


def _rows_of(pattern: Pattern, rows: np.ndarray) -> Pattern:
    indptr = np.concatenate([[0], np.cumsum(pattern.row_lengths()[rows])])
    return Pattern((rows.size, pattern.cols), indptr, pattern.indices[pattern.nonzeros_of(rows)])
