"""The dense product of GeMM-SpMM by itself: many rows times a small matrix, by kernels/cpu/tall_gemm.hpp."""

import numpy as np

from sparloom.fusion.bind import CsrRows, Loops, Variant, Workspace, fill
from sparloom.fusion.native import fused_library
from sparloom.fusion.unfused import unfused_schedule
from sparloom.jit import NativeCall
from sparloom.ops import GemmSpmm, Operands
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["tall_gemm"]


def tall_gemm(
    left: np.ndarray, right: np.ndarray, *, threads: int, variant: Variant,
) -> tuple[NativeCall, np.ndarray]:
    """Bind left right; gives the call and the array (rows, width) that it overwrites.

    It is loop one of GeMM-SpMM with an A of one empty row, so what is timed here is what unfused products execute.

    Args:
        left: (rows, inner).
        right: (inner, width), of the same type.
        variant: `stream_first` and `blas` matter.

    Raises:
        ValueError: the shapes do not fit together.
    """
    (rows, inner), (depth, width) = left.shape, right.shape
    if inner != depth:
        raise ValueError(f"{rows} x {inner} times {depth} x {width}: give as many rows of right as columns of left")
    pattern = Pattern((1, rows), np.zeros(2, np.int64), np.empty(0, np.int32))
    matrix = SparseMatrix(pattern, np.empty(0, left.dtype), left.dtype.name)
    operands, workspace = Operands(matrix, {"B": left, "C": right}), Workspace()
    schedule = unfused_schedule(pattern, threads=threads)
    loops = Loops(schedule, threads, variant, CsrRows.of(matrix))
    empty = np.empty((1, width), left.dtype)
    arguments, kept = fill(GemmSpmm(inner=inner, dtype=left.dtype.name), operands, empty, loops, workspace)
    call = NativeCall(fused_library(left.dtype).sparloom_gemm_spmm, arguments, kept=kept)
    return call, workspace.array("d1", (rows, width), left.dtype)
