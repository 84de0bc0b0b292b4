"""Dense GEMM by Triton: the kernel, its compilation, which needs no device, and its launch without torch."""

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.lazy import install_command
from sparloom.ops import GEMM, DenseOperands, GemmShape
from sparloom.platforms.cuda import DeviceOperands
from sparloom.platforms.cuda.device import CudaDevice, Gpu, LaunchShape
from sparloom.platforms.cuda.launch import HostCheck, Launch, Launches
from sparloom.platforms.timing import Call
from sparloom.space import Config, GridSpace, TritonGemmSpace

NAME = "gemm"
ARGUMENTS = 7  # a, b, c, m, n, k, group_m; what Triton adds are pointers to scratch memory
ALIGNMENT = 16  # elements; rows that are multiples of it are loaded in pieces of 16 bytes
VERSION = ""  # of the kernel, among the conditions of samples: change it with what the kernel computes
INDEX_LIMIT = 2**31 - 1  # the kernel counts elements in int32


class TritonGemm:
    """The family of GEMM, without configurations that exceed the limits of the device."""

    def __init__(self, limits: CudaDevice) -> None:
        self._limits = limits
        self._space = TritonGemmSpace(limits.shared_per_block_bytes)
        self._compiled: dict[Tiling, CompiledGemm | Unsupported] = {}

    def space(self) -> GridSpace:
        """List the configurations."""
        return self._space

    def result(self, gpu: Gpu, inputs: DenseOperands) -> Any:
        """Allocate C (m, n)."""
        return gpu.empty((inputs.shape.m, inputs.shape.n), np.float32)

    def compile(self, inputs: DenseOperands, configs: Sequence[Config]) -> None:
        """Compile the kernels of configurations that are not compiled yet, one process per processor."""
        tilings = dict.fromkeys(_tiling(config, inputs.shape) for config in configs)
        missing = [tiling for tiling in tilings if tiling not in self._compiled]
        processes = min(len(os.sched_getaffinity(0)), len(missing))
        if processes < 2:
            return
        from joblib import Parallel, delayed

        tasks = (delayed(_compiled_or_refused)(tiling, self._limits.compute_capability) for tiling in missing)
        self._compiled.update(zip(missing, Parallel(processes)(tasks), strict=True))

    def bind(self, gpu: Gpu, operands: DeviceOperands, config: Config, result: Any) -> Call:
        """Compile the kernel of a configuration, unless `compile` did, and bind it.

        Raises:
            Unsupported: Triton refuses it, it needs more shared memory than the device has, an operand is too large,
                transposed, or not float32.
        """
        if operands.element != "float":
            raise Unsupported("the operands are float16: the Triton kernel takes float32, convert them")
        shape = operands.host.shape
        if shape.layout != "nn":
            raise Unsupported(f"layout {shape.layout} of {shape.matrix}: the Triton kernel reads A and B as they are "
                              "multiplied, copy what is stored transposed")
        _check_extent(shape.m * shape.k, shape.k * shape.n, shape.m * shape.n)
        tiling = _tiling(config, shape)
        if tiling not in self._compiled:
            self._compiled[tiling] = _compiled_or_refused(tiling, gpu.device.compute_capability)
        made = self._compiled[tiling]
        if isinstance(made, Unsupported):
            raise made
        tiles = -(-shape.m // tiling.block_m) * -(-shape.n // tiling.block_n)
        grid = LaunchShape((tiles, tiling.split), 32 * tiling.warps, made.shared_bytes)
        numbers = (np.int32(extent) for extent in (shape.m, shape.n, shape.k, config["group_m"]))
        arguments = (operands.dense["A"], operands.dense["B"], result, *numbers, *[np.uint64(0)] * made.scratch)
        launch = Launches.checked([Launch(gpu.binary(made.binary, NAME), grid, arguments)], gpu)
        if tiling.split == 1:
            return launch

        def call() -> None:
            result.fill(0)
            launch()

        return call

    def check(self, op: GEMM, inputs: DenseOperands, *, seed: int) -> HostCheck:
        """Compare the whole result with the oracle."""
        return op.bounds(inputs).check


@dataclass(frozen=True)
class Tiling:
    """The constants for which the kernel is compiled.

    Args:
        split: whether several programs share the sums of a tile.
        aligned_n, aligned_k: whether n and k are multiples of 16.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    split: int
    precision: str
    aligned_n: bool
    aligned_k: bool

    @property
    def constants(self) -> dict[str, int | str]:
        """Arguments that are known when the kernel is compiled."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k, "SPLIT_K": self.split,
                "PRECISION": self.precision}


@dataclass(frozen=True)
class CompiledGemm:
    """Machine code, its shared memory per block, and the number of null pointers behind its arguments."""

    binary: bytes
    shared_bytes: int
    scratch: int


def compile_gemm(tiling: Tiling, compute_capability: int) -> CompiledGemm:
    """Compile for a device such as 90, cached on disk; raises Unsupported if Triton cannot."""
    triton = _triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "*fp32" for name in "abc"} | dict.fromkeys(("m", "n", "k", "group_m"), "i32")
    signature |= dict.fromkeys(tiling.constants, "constexpr")
    aligned = [0, 1, 2, *([4] if tiling.aligned_n else []), *([5] if tiling.aligned_k else [])]
    source = ASTSource(gemm_kernel(), signature, tiling.constants,
                       {(index,): [["tt.divisibility", ALIGNMENT]] for index in aligned})
    options = {"num_warps": tiling.warps, "num_stages": tiling.stages, "enable_fp_fusion": True}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")  # which the options above decide
            made = triton.compile(source, target=GPUTarget("cuda", compute_capability, 32), options=options)
    except (triton.compiler.errors.CompilationError, RuntimeError) as error:
        raise Unsupported(f"Triton refuses {tiling}: {error}") from error
    entry = re.search(rf"\.entry {NAME}\((.*?)\)", made.asm["ptx"], re.DOTALL)
    types = re.findall(r"\.param \.(\w+)", entry[1])[ARGUMENTS:]
    assert set(types) <= {"u64"}, f"Triton adds arguments that are no pointers: {types}"
    return CompiledGemm(made.asm["cubin"], made.metadata.shared, len(types))


def gemm_kernel() -> Any:
    """Define C = A B, A (m, k), B (k, n), C (m, n), row-major; grid (tiles, SPLIT_K).

    Tiles are walked in bands of `group_m` rows of tiles, so that those at work share columns of B. Programs of one tile
    that share its sums add them to C, which must hold zeros.

    Source: the tutorial of Triton on matrix multiplication has the order of the tiles.
    """
    triton = _triton()
    import triton.language as tl

    @triton.jit
    def gemm(a, b, c, m, n, k, group_m, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             SPLIT_K: tl.constexpr, PRECISION: tl.constexpr):
        tiles_m, tiles_n = (m + BLOCK_M - 1) // BLOCK_M, (n + BLOCK_N - 1) // BLOCK_N
        band, inside = tl.program_id(0) // (group_m * tiles_n), tl.program_id(0) % (group_m * tiles_n)
        high = tl.minimum(tiles_m - band * group_m, group_m)
        rows = (band * group_m + inside % high) * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = inside // high * BLOCK_N + tl.arange(0, BLOCK_N)
        first = tl.program_id(1) * BLOCK_K
        sums = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        for begin in range(first, k, BLOCK_K * SPLIT_K):
            steps = begin + tl.arange(0, BLOCK_K)
            some, others = (rows[:, None] < m) & (steps[None, :] < k), (steps[:, None] < k) & (columns[None, :] < n)
            left = tl.load(a + rows[:, None] * k + steps[None, :], some, 0.0)
            right = tl.load(b + steps[:, None] * n + columns[None, :], others, 0.0)
            sums = tl.dot(left, right, sums, input_precision=PRECISION)
        place, inner = c + rows[:, None] * n + columns[None, :], (rows[:, None] < m) & (columns[None, :] < n)
        if SPLIT_K == 1:
            tl.store(place, sums, inner)
        else:
            tl.atomic_add(place, sums, inner)

    return gemm


def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise Unsupported(f"no Triton ({error}): {install_command('gpu')}") from error
    return triton


def _compiled_or_refused(tiling: Tiling, compute_capability: int) -> CompiledGemm | Unsupported:
    try:
        return compile_gemm(tiling, compute_capability)
    except Unsupported as error:
        return error


def _tiling(config: Config, shape: GemmShape) -> Tiling:
    blocks = (int(config[name]) for name in ("block_m", "block_n", "block_k", "warps", "stages", "split_k"))
    return Tiling(*blocks, str(config["precision"]), aligned_n=shape.n % ALIGNMENT == 0,
                  aligned_k=shape.k % ALIGNMENT == 0)


def _check_extent(*elements: int) -> None:
    if max(elements) > INDEX_LIMIT:
        raise Unsupported(f"an operand has {max(elements)} elements, above the {INDEX_LIMIT} that the kernel counts")
