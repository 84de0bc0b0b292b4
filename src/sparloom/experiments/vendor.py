"""GEMM as a user has it without us: vendor libraries behind a call, to be timed between our kernels."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sparloom.ops import DenseOperands
from sparloom.space import Config

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels, CudaPlatform

__all__ = ["PRESET", "vendor_rivals"]

PRESET = "vendor"


def vendor_rivals(platform: "CpuKernels | CudaPlatform") -> Mapping[Config, Callable[[Any, Any], Callable[[], None]]]:
    """Name the vendors of a platform.

    "vendor=mkl" is torch.mm, which calls MKL, or the library torch was built with if not MKL; seconds include what
    torch does around the library, about a microsecond. "vendor=cublas" is CuPy's product, in float32 without TF32.
    """
    if platform.kind == "device":
        return {_named("cublas"): _cupy_matmul}
    torch.set_num_threads(platform.threads)
    return {_named("mkl" if torch.backends.mkl.is_available() else "torch"): _torch_mm}


def _named(vendor: str) -> Config:
    return Config(PRESET, (("vendor", vendor),))


def _cupy_matmul(placed: Any, result: Any) -> Callable[[], None]:
    import cupy

    return partial(cupy.matmul, placed.dense["A"], placed.dense["B"], out=result)


def _torch_mm(operands: DenseOperands, result: np.ndarray) -> Callable[[], None]:
    left, right, out = (torch.from_numpy(array) for array in (operands.dense["A"], operands.dense["B"], result))

    def run() -> None:
        torch.mm(left, right, out=out)

    return run
