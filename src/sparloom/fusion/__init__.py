"""Tile fusion: two parallel loops with a sparse dependence between them, executed tile by tile."""

from sparloom.fusion.baselines import atomic_tiling, fused_gemv, overlapped_tiling
from sparloom.fusion.bind import Pair, Variant, Workspace
from sparloom.fusion.budget import Budget
from sparloom.fusion.cache_walk import CacheLevel, access_cycles, machine_levels, mean_cycles
from sparloom.fusion.decorator import FusedFunction, fuse
from sparloom.fusion.executor import Executor, potential_gain
from sparloom.fusion.frontend import fprange
from sparloom.fusion.identity_cache import IdentityCache
from sparloom.fusion.legality import check_schedule
from sparloom.fusion.loops import FusedLoops, Loop, Reads, gemm_spmm_loops, spmm_gemm_loops, spmm_spmm_loops
from sparloom.fusion.operands import Csr
from sparloom.fusion.order import (
    LEAST_FUSED_RATIO,
    Reordered,
    bandwidth_order,
    metis_order,
    partition_order,
    rescue_order,
)
from sparloom.fusion.pin import pinned
from sparloom.fusion.row_pass import RowPass, RowSteps
from sparloom.fusion.schedule import TileSchedule
from sparloom.fusion.tall_gemm import tall_gemm
from sparloom.fusion.tiles import coarse_tiles, schedule_tiles
from sparloom.fusion.unfused import separated, unfused_schedule

__all__ = [
    "LEAST_FUSED_RATIO", "Budget", "CacheLevel", "Csr", "Executor", "FusedFunction", "FusedLoops", "IdentityCache",
    "Loop", "Pair", "Reads", "Reordered", "RowPass", "RowSteps", "TileSchedule",
    "Variant", "Workspace", "access_cycles", "atomic_tiling", "bandwidth_order", "check_schedule", "coarse_tiles",
    "fprange", "fuse", "fused_gemv", "gemm_spmm_loops", "machine_levels", "mean_cycles",
    "metis_order", "overlapped_tiling", "partition_order", "pinned", "potential_gain", "rescue_order",
    "schedule_tiles", "separated", "spmm_gemm_loops", "spmm_spmm_loops", "tall_gemm", "unfused_schedule",
]
