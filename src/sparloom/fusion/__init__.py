"""Tile fusion: two parallel loops with a sparse dependence between them, executed tile by tile."""

from sparloom.fusion.legality import check_schedule
from sparloom.fusion.schedule import TileSchedule

__all__ = ["TileSchedule", "check_schedule"]
