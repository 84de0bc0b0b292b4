"""Hand-written CPU kernels as a platform, with one family per operation, and the family of dense GEMM."""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float

from sparloom.jit import NativeCall, address, aligned, compiler_version, kernel_library, sources_digest
from sparloom.measure import Measurement, TimingProtocol, checked_threads
from sparloom.ops import GEMM, DenseOperands, Op
from sparloom.platforms.clock import Stopwatch, keep_threads_awake
from sparloom.platforms.cpu_kernels.estimate import Described, estimate_sparse_seconds
from sparloom.platforms.cpu_kernels.sparse_kernels import SPARSE_FAMILIES
from sparloom.platforms.platform import BaselineBinder, Family, Inputs, KernelPlatform, unknown_operation
from sparloom.platforms.timing import Call, Check, measure_rounds, reallocated, repeat_of
from sparloom.space import GEMM_BLOCK_COLUMNS, Config, GemmSpace, GridSpace, register_tile

ESTIMATED = ("spmm", "sddmm")  # operations with a formula of seconds
PACK = {"none": 0, "b": 1, "ab": 2}


class CpuKernels(KernelPlatform):
    """Kernels under kernels/cpu, compiled for this machine; a configuration chooses one of them and its tiles.

    Args:
        threads: of every kernel; names the preset.
        width: columns of the dense operand for which the spaces of sparse operations are made.
    """

    name = "cpu_kernels"
    kind = "wall"

    def __init__(self, threads: int, width: int) -> None:
        self.threads = checked_threads(threads)
        self.width = width

    def __reduce__(self) -> tuple[type["CpuKernels"], tuple[int, int]]:
        """Pickle the settings only: compiled kernels stay in their process."""
        return CpuKernels, (self.threads, self.width)

    @property
    def preset(self) -> str:
        """Name of these settings in sample tables."""
        return f"t{self.threads}"

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what seconds depend on besides the machine: threads, compiler, sources of the kernels of `op`."""
        self.family(op)  # refuses an operation without kernels
        return {"threads": self.threads, "compiler": compiler_version("c++"),
                "sources": sources_digest([f"cpu/{op.name}.cpp"])}

    def has_estimate(self, op: Op) -> bool:
        """Tell whether there is a formula for an operation."""
        return op.name in ESTIMATED

    def estimate(self, op: Op, matrix: Described, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Estimate the seconds of configurations by a formula, without measuring; see `estimate_sparse_seconds`."""
        return estimate_sparse_seconds(op.name, matrix, configs, width=self.width, threads=self.threads)

    def run(self, op: Op, operands: Inputs, config: Config) -> np.ndarray:
        """Compute the result in float32.

        Raises:
            IllegalSchedule: the configuration is not in the space.
        """
        family = self.family(op)
        family.space().validate(config)
        result = family.result(operands)
        family.bind(operands, config, result)()
        return result

    def measure_many(
        self, op: Op, operands: Inputs, configs: Sequence[Config], timing: TimingProtocol,
        baselines: Mapping[Config, BaselineBinder] | None = None,
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds, as `KernelPlatform` says; in each, operands are reallocated."""
        keep_threads_awake()
        family = self.family(op)
        for config in configs:
            family.space().validate(config)

        def prepare() -> tuple[dict[Config, Callable[[], Call]], np.ndarray]:
            inputs = reallocated(operands)
            result = family.result(inputs)
            ours = {config: partial(family.bind, inputs, config, result) for config in configs}
            return ours | {config: partial(bind, inputs, result) for config, bind in (baselines or {}).items()}, result

        yield from measure_rounds(
            prepare, family.check(op, operands, seed=timing.seed), timing, kind=self.kind,
            stopwatch=lambda call: Stopwatch(repeat_of(call), timing, threads=self.threads))

    def family(self, op: Op) -> Family:
        """Return the kernels of `op`."""
        if op.name not in self._families:
            raise unknown_operation(op, self.name, self._families)
        return self._families[op.name]

    @cached_property
    def _families(self) -> dict[str, Family]:
        return {name: family(self.threads, self.width) for name, family in FAMILIES.items()}


class GemmKernels:
    """The family of dense GEMM; all calls share one workspace for packed blocks, so they run one after the other.

    Args:
        threads: of every call.
        width: ignored, because a shape has its own.
    """

    def __init__(self, threads: int, width: int) -> None:
        self.threads = threads
        self.width = width
        self._workspace = aligned((0,), np.float32)

    def space(self) -> GridSpace:
        return self._space

    def result(self, operands: DenseOperands) -> np.ndarray:
        """Allocate C (m, n)."""
        return aligned((operands.shape.m, operands.shape.n), np.float32)

    def bind(self, operands: DenseOperands, config: Config, result: np.ndarray) -> NativeCall:
        shape, (rows, columns) = operands.shape, register_tile(config)
        arguments = _Gemm(
            m=shape.m, n=shape.n, k=shape.k, tile_m=config["tile_m"], tile_n=GEMM_BLOCK_COLUMNS,
            tile_k=config["tile_k"], rows=rows, columns=columns, unroll=config["unroll"], pack=PACK[config["pack"]],
            split_k=config["split_k"], prefetch=config["prefetch"], persistent=config["loop"] == "persistent",
            a_transposed=shape.a_transposed, b_transposed=shape.b_transposed, threads=self.threads)
        library = kernel_library("gemm")
        prepare = library.sparloom_gemm_prepare
        prepare.restype = ctypes.c_int64
        floats = prepare(ctypes.byref(arguments))
        assert floats >= 0, f"kernels/cpu/gemm.cpp has no register tile {config['micro']}"
        workspace = self._workspace
        if floats > workspace.size:
            workspace = self._workspace = aligned((floats,), np.float32, zero=True)
        arguments.workspace = address(workspace)
        call = NativeCall(library.sparloom_gemm, arguments, kept=(workspace,))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: NativeCall, operands: DenseOperands, result: np.ndarray) -> None:
        arguments = call.arguments
        arguments.a, arguments.b = address(operands.dense["A"]), address(operands.dense["B"])
        arguments.c = address(result, written=True)
        call.lent = (operands, result)

    def check(self, op: GEMM, operands: DenseOperands, *, seed: int) -> Check:
        """Compare the whole result with the oracle."""
        return op.bounds(operands).check

    @cached_property
    def _space(self) -> GridSpace:
        return GemmSpace()


FAMILIES: Mapping[str, Callable[[int, int], Family]] = {
    "gemm": GemmKernels, **{op: family for op, family in SPARSE_FAMILIES.items() if op != "spmm_mean"}}


class _Gemm(ctypes.Structure):
    """The struct Gemm of kernels/cpu/gemm.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "workspace")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "tile_m", "tile_n", "tile_k")),
        *((name, ctypes.c_int32) for name in (
            "rows", "columns", "unroll", "pack", "split_k", "prefetch", "persistent", "a_transposed", "b_transposed",
            "threads")),
        ("tile", ctypes.c_void_p),
    )
