"""Tile fusion: two parallel loops with a sparse dependence between them, executed tile by tile.

The way of a function that is decorated with `fuse`:

    decorator     `fuse`: compiles a function for each set of argument types, and caches schedules
    frontend/     Python function -> program
    program       what the front end produces: scalars, arrays, accesses, two loops; sparse arguments
    symbolic      integer expressions in SymPy, their ranges, and checks of subscripts
    dependence    dependences between the two loops
    codegen       program -> kernels of the loop IR
    recognition   recognises matrix products, which the executor runs
    compiled      the compiled program: sizes, dependence graph, calls

The way of a product of three matrices, which needs no compilation:

    schedule      the two loops, tile schedules, their legality, and the inspector (Algorithm 1)
    orders        orders of the iterations that fuse more of them
    executor      runs a schedule with the kernels of kernels/cpu
    row_pass      SpMM-GeMM with sums on the side, in one pass over the rows
    comparison    the baselines of the paper, a cache simulator, load balance, thread pinning
"""

from functools import partial

from sparloom.fusion.comparison import (
    CacheLevel,
    access_cycles,
    atomic_tiling,
    fused_gemv,
    machine_levels,
    mean_cycles,
    overlapped_tiling,
    pinned,
    potential_gain,
    tall_gemm,
)
from sparloom.fusion.decorator import Budget, FusedFunction, fuse
from sparloom.fusion.executor import Executor, Pair, Variant, Workspace
from sparloom.fusion.orders import (
    MIN_FUSED_RATIO,
    Reordered,
    bandwidth_order,
    metis_order,
    partition_order,
    rescue_order,
)
from sparloom.fusion.program import Csr, fprange
from sparloom.fusion.row_pass import RowPass, RowSteps
from sparloom.fusion.schedule import (
    FusedLoops,
    Loop,
    Reads,
    TileSchedule,
    check_schedule,
    coarse_tiles,
    gemm_spmm_loops,
    schedule_tiles,
    separated,
    spmm_gemm_loops,
    spmm_spmm_loops,
    unfused_schedule,
)
from sparloom.jit import IdentityCache
from sparloom.lazy import resolve

__all__ = [
    "MIN_FUSED_RATIO", "Budget", "CacheLevel", "Csr", "Executor", "FusedFunction", "FusedLoops", "IdentityCache",
    "Loop", "Pair", "Reads", "Reordered", "RowPass", "RowSteps", "TileSchedule", "Variant", "Workspace",
    "access_cycles", "atomic_tiling", "bandwidth_order", "check_schedule", "coarse_tiles", "fprange", "fuse",
    "fused_gemv", "gemm_spmm_loops", "machine_levels", "mean_cycles", "metis_order", "overlapped_tiling",
    "partition_order", "pinned", "potential_gain", "rescue_order", "schedule_tiles", "separated", "spmm_gemm_loops",
    "spmm_spmm_loops", "tall_gemm", "unfused_schedule",
]
__getattr__ = partial(resolve, __name__)
