"""SpMM and SDDMM by cuSPARSE, to be timed between our kernels on a GPU.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from sparloom.errors import Unsupported
from sparloom.experiments.vendor import PRESET
from sparloom.nn import device_csr
from sparloom.ops import Op, Operands
from sparloom.platforms import CudaPlatform, CupyGpu, DeviceMatrix, DevicePattern, cusparse_spmm
from sparloom.space import Config

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sparloom.platforms import Platform

__all__ = ["sparse_vendors"]


def sparse_vendors(platform: "Platform", op: Op) -> Mapping[Config, "Callable[[Any, Any], Callable[[], None]]"]:
    """Name cuSPARSE's algorithms for an operation; none where it has none, on other platforms, without CuPy or GPU.

    "vendor=cusparse" and, of SpMM, "vendor=cusparse_alg2"; SDDMM is torch's sampled_addmm, times A's values.
    """
    try:
        gpu = platform.gpu if op.name in VENDORS and isinstance(platform, CudaPlatform) else None
    except Unsupported:
        return {}
    return {Config(PRESET, (("vendor", name),)): partial(bind, gpu)
            for name, bind in VENDORS[op.name].items()} if isinstance(gpu, CupyGpu) else {}


def _spmm(gpu: "Any", placed: "Any", result: "Any", *, algorithm: str) -> "Callable[[], None]":
    matrix = _matrix(gpu, placed)
    product, operands = cusparse_spmm(matrix, algorithm), Operands(matrix, placed.dense)
    return lambda: product(operands, result)


def _sddmm(gpu: "Any", placed: "Any", result: "Any") -> "Callable[[], None]":
    matrix = device_csr(_matrix(gpu, placed))
    left, right, written = map(torch.from_dlpack, (placed.dense["B"], placed.dense["C"], result))

    def run() -> None:
        torch.mul(torch.sparse.sampled_addmm(matrix, left, right.T, beta=0.0).values(), matrix.values(), out=written)

    return run


def _matrix(gpu: "Any", placed: "Any") -> DeviceMatrix:
    pattern = placed.pattern or DevicePattern.on(gpu, placed.given.matrix.pattern)
    return DeviceMatrix(gpu, pattern, placed.values)


VENDORS = MappingProxyType({
    "spmm": {"cusparse": partial(_spmm, algorithm="default"), "cusparse_alg2": partial(_spmm, algorithm="alg2")},
    "sddmm": {"cusparse": _sddmm}})
"""Operation -> name -> what binds it to a device, operands there and a result."""
