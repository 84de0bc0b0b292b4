"""NVIDIA GPUs as a backend: kernels under kernels/cuda and their libraries. Status: docs/gpu_status.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.baselines import cusparse_spmm
from sparloom.errors import Unsupported
from sparloom.jit import kernels_digest
from sparloom.ops import Op, Operands
from sparloom.platforms import (
    CudaPlatform,
    CupyGpu,
    DeviceKernels,
    DeviceMatrix,
    DevicePattern,
    Gpu,
)
from sparloom.platforms.cuda import BITS, as_float32
from sparloom.space import CUDA_KERNELS, HUBS, Config, ConfigSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.machine import device_digest
from sparloom.tuning.racing import Call, Clock, Timer
from sparloom.tuning.sparse.cuda_estimate import CUDA_SOURCES, CudaEstimate, cuda_rates
from sparloom.tuning.sparse.inputs import Origin, cuda_dense
from sparloom.tuning.sparse.settings import CsrPolicy
from sparloom.tuning.sparse.tuner import Library, Product, gathered_pieces

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


PORTFOLIO: Mapping[str, tuple[str, ...]] = {
    "spmm": (
        "balance=q90,lanes=16,vector=4,loads=2,warps=8",
        "balance=q95,lanes=32,vector=4,loads=2,warps=2",
        "balance=q99,lanes=8,vector=4,loads=2,warps=4",
        "balance=rows,lanes=16,vector=4,loads=2,warps=4",
        "balance=q99,lanes=8,vector=4,loads=2,warps=8",
        "balance=q95,lanes=8,vector=4,loads=2,warps=2",
        "balance=q99,lanes=16,vector=4,loads=2,warps=4",
        "balance=q95,lanes=32,vector=4,loads=2,warps=4",
    ),
    "sddmm": (
        "balance=nonzeros,lanes=32,vector=4,group=2,warps=2",
        "balance=q90,lanes=16,vector=4,group=2,warps=2",
        "balance=nonzeros,lanes=16,vector=4,group=2,warps=8",
        "balance=q90,lanes=32,vector=4,group=2,warps=8",
        "balance=nonzeros,lanes=8,vector=4,group=4,warps=2",
        "balance=nonzeros,lanes=32,vector=4,group=1,warps=8",
        "balance=q90,lanes=16,vector=4,group=2,warps=8",
        "balance=q90,lanes=32,vector=4,group=2,warps=2",
    ),
    "attention": (
        "balance=q90,lanes=16,vector=4,group=1,warps=8",
        "balance=rows,lanes=8,vector=4,group=2,warps=2",
        "balance=q90,lanes=16,vector=4,group=2,warps=8",
        "balance=q90,lanes=16,vector=4,group=1,warps=4",
        "balance=q99,lanes=16,vector=4,group=4,warps=4",
        "balance=q95,lanes=8,vector=4,group=1,warps=2",
        "balance=q90,lanes=8,vector=4,group=2,warps=8",
        "balance=q95,lanes=16,vector=2,group=4,warps=8",
    ),
}
"""Operation -> kernels that the estimate prefers, from results/choose_kernels_cuda/portfolios.json, which
`python run.py experiment=choose_kernels_cuda` writes: chosen on 18 matrices, 256 columns and an H200."""
FAVOURED = PORTFOLIO | dict.fromkeys(("spmm_mean", "spmm_max"), PORTFOLIO["spmm"])


def safe_kernel(space: ConfigSpace, op: str) -> Config:
    """Adapt the default of a space, with a balance that no matrix makes slow."""
    return space.default().replace(**BALANCE[op])


def kernel_kind(config: Config) -> str:
    """Name the balance; all thresholds of hubs are one kind."""
    balance = str(config["balance"]) if "balance" in config.names else ""
    return "hubs" if balance in HUBS else balance


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
        return safe_kernel(self.space(op, operands.width), op.name)

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

    def kind(self, config: Config) -> str:
        return kernel_kind(config)

    def model(self, cache: PlanCache) -> CudaEstimate:
        return CudaEstimate(cuda_rates(self.gpu, cache, self.signature()), FAVOURED)

    def policy(self) -> CsrPolicy:
        """Sample more than on a CPU."""
        return CsrPolicy(least_nonzeros=MIN_SAMPLE_NONZEROS)

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
