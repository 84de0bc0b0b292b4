"""Tile fusion: two parallel loops with a sparse dependence between them, executed tile by tile."""

from sparloom.fusion.legality import check_schedule
from sparloom.fusion.loops import FusedLoops, Loop, Reads, gemm_spmm_loops, spmm_gemm_loops, spmm_spmm_loops
from sparloom.fusion.schedule import TileSchedule
from sparloom.fusion.tiles import schedule_tiles

__all__ = [
    "FusedLoops", "Loop", "Reads", "TileSchedule", "check_schedule", "gemm_spmm_loops", "schedule_tiles",
    "spmm_gemm_loops", "spmm_spmm_loops",
]
