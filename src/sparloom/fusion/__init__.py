"""Tile fusion: two parallel loops with a sparse dependence between them, executed tile by tile."""

from sparloom.fusion.budget import Budget
from sparloom.fusion.decorator import FusedFunction, fuse
from sparloom.fusion.frontend import fprange
from sparloom.fusion.legality import check_schedule
from sparloom.fusion.loops import FusedLoops, Loop, Reads, gemm_spmm_loops, spmm_gemm_loops, spmm_spmm_loops
from sparloom.fusion.operands import Csr
from sparloom.fusion.order import Reordered, bandwidth_order, metis_order, partition_order, rescue_order
from sparloom.fusion.schedule import TileSchedule
from sparloom.fusion.store import ScheduleKey, ScheduleStore, load_schedule, save_schedule
from sparloom.fusion.summary import summarise
from sparloom.fusion.tiles import coarse_tiles, schedule_tiles

__all__ = [
    "Budget",
    "Csr",
    "FusedFunction",
    "FusedLoops",
    "Loop",
    "Reads",
    "Reordered",
    "ScheduleKey",
    "ScheduleStore",
    "TileSchedule",
    "bandwidth_order",
    "check_schedule",
    "coarse_tiles",
    "fprange",
    "fuse",
    "gemm_spmm_loops",
    "load_schedule",
    "metis_order",
    "partition_order",
    "rescue_order",
    "save_schedule",
    "schedule_tiles",
    "spmm_gemm_loops",
    "spmm_spmm_loops",
    "summarise",
]
