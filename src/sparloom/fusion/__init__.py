"""Tile fusion: two parallel loops with a sparse dependence between them, executed tile by tile."""

from sparloom.fusion.baselines import atomic_tiling, fused_gemv, overlapped_tiling, tall_gemm
from sparloom.fusion.decorator import Budget, FusedFunction, fuse
from sparloom.fusion.diagnostics import CacheLevel, access_cycles, machine_levels, mean_cycles, pinned
from sparloom.fusion.executor import Executor, Pair, Variant, Workspace, potential_gain
from sparloom.fusion.frontend import fprange
from sparloom.fusion.inspector import (
    LEAST_FUSED_RATIO,
    Reordered,
    bandwidth_order,
    coarse_tiles,
    metis_order,
    partition_order,
    rescue_order,
    schedule_tiles,
)
from sparloom.fusion.operands import Csr, IdentityCache
from sparloom.fusion.row_pass import RowPass, RowSteps
from sparloom.fusion.schedule import (
    FusedLoops,
    Loop,
    Reads,
    TileSchedule,
    check_schedule,
    gemm_spmm_loops,
    separated,
    spmm_gemm_loops,
    spmm_spmm_loops,
    unfused_schedule,
)

__all__ = [
    "LEAST_FUSED_RATIO", "Budget", "CacheLevel", "Csr", "Executor", "FusedFunction", "FusedLoops", "IdentityCache",
    "Loop", "Pair", "Reads", "Reordered", "RowPass", "RowSteps", "TileSchedule", "Variant", "Workspace",
    "access_cycles", "atomic_tiling", "bandwidth_order", "check_schedule", "coarse_tiles", "fprange", "fuse",
    "fused_gemv", "gemm_spmm_loops", "machine_levels", "mean_cycles", "metis_order", "overlapped_tiling",
    "partition_order", "pinned", "potential_gain", "rescue_order", "schedule_tiles", "separated", "spmm_gemm_loops",
    "spmm_spmm_loops", "tall_gemm", "unfused_schedule",
]
