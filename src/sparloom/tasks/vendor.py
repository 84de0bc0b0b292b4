"""GEMM as a user has it without us: vendor libraries behind a call, to be timed between our kernels."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from sparloom.ops import DenseOperands
from sparloom.space import Config

__all__ = ["PRESET", "vendor_rivals"]

PRESET = "vendor"


def vendor_rivals(threads: int) -> Mapping[Config, Callable[[DenseOperands, np.ndarray], Callable[[], None]]]:
    """Name the vendors: "vendor=mkl" is torch.mm, which calls MKL, or the library torch was built with if not MKL.

    Seconds include what torch does around the library, about a microsecond.
    """
    torch.set_num_threads(threads)
    return {Config(PRESET, (("vendor", "mkl" if torch.backends.mkl.is_available() else "torch"),)): _torch_mm}


def _torch_mm(operands: DenseOperands, result: np.ndarray) -> Callable[[], None]:
    left, right, out = (torch.from_numpy(array) for array in (operands.dense["A"], operands.dense["B"], result))

    def run() -> None:
        torch.mm(left, right, out=out)

    return run
