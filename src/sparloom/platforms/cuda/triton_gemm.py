"""The Triton kernel of dense GEMM bound to arrays of a device; launched without torch, which Triton would ask for."""

from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ops import GEMM, DenseOperands, OracleBounds
from sparloom.platforms.cuda.device import CudaDevice, LaunchShape
from sparloom.platforms.cuda.family import HostCheck, Launch, Placed, in_order
from sparloom.platforms.cuda.gpu import Gpu
from sparloom.platforms.cuda.triton_kernel import ALIGNMENT, NAME, Tiling, compile_gemm
from sparloom.platforms.sweep import Call
from sparloom.space import Config, GridSpace, TritonGemmSpace

__all__ = ["TritonGemm"]

INDEX_LIMIT = 2**31 - 1  # the kernel counts elements in int32


class TritonGemm:
    """The family of GEMM.

    Args:
        limits: of the device, by which configurations are left out.
    """

    def __init__(self, limits: CudaDevice) -> None:
        self._space = TritonGemmSpace(limits.shared_per_block_bytes)

    def space(self) -> GridSpace:
        """List the configurations."""
        return self._space

    def result(self, gpu: Gpu, given: DenseOperands) -> Any:
        """Allocate C (m, n)."""
        return gpu.empty((given.shape.m, given.shape.n), np.float32)

    def bind(self, gpu: Gpu, placed: Placed, config: Config, result: Any) -> Call:
        """Compile and bind the kernel of a configuration.

        Raises:
            Unsupported: Triton refuses it, it needs more shared memory than the device has, an operand is too large or
                not float32.
        """
        if placed.element != "float":
            raise Unsupported("the operands are float16: the kernel of Triton takes float32, convert them")
        shape = placed.given.shape
        _check_extent(shape.m * shape.k, shape.k * shape.n, shape.m * shape.n)
        tiling = _tiling(config, placed.given)
        made = compile_gemm(tiling, gpu.device.compute_capability)
        tiles = -(-shape.m // tiling.block_m) * -(-shape.n // tiling.block_n)
        grid = LaunchShape((tiles, tiling.split), 32 * tiling.warps, made.shared_bytes)
        numbers = (np.int32(extent) for extent in (shape.m, shape.n, shape.k, config["group_m"]))
        arguments = (placed.dense["A"], placed.dense["B"], result, *numbers, *[np.uint64(0)] * made.scratch)
        launch = in_order([Launch(gpu.binary(made.binary, NAME), grid, arguments)], gpu)
        if tiling.split == 1:
            return launch

        def call() -> None:
            result.fill(0)
            launch()

        return call

    def check(self, op: GEMM, given: DenseOperands, *, seed: int) -> HostCheck:
        """Know all of the result."""
        return OracleBounds(op.oracle(given), terms=op.terms(given.shape), scale=op.scale(given)).check


def _tiling(config: Config, given: DenseOperands) -> Tiling:
    blocks = (int(config[name]) for name in ("block_m", "block_n", "block_k", "warps", "stages", "split_k"))
    return Tiling(*blocks, str(config["precision"]), aligned_n=given.shape.n % ALIGNMENT == 0,
                  aligned_k=given.shape.k % ALIGNMENT == 0)


def _check_extent(*elements: int) -> None:
    if max(elements) > INDEX_LIMIT:
        raise Unsupported(f"an operand has {max(elements)} elements, above the {INDEX_LIMIT} that the kernel counts")
