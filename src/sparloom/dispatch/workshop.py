"""From choices to what executes them: orders, schedules, executors."""

from collections.abc import Callable, Mapping

import numpy as np

from sparloom.dispatch.choice import PairChoice
from sparloom.dispatch.problem import Problem
from sparloom.errors import Unsupported
from sparloom.fusion import (
    Executor,
    FusedLoops,
    TileSchedule,
    bandwidth_order,
    metis_order,
    partition_order,
    schedule_tiles,
    unfused_schedule,
)
from sparloom.sparse import Pattern

__all__ = ["Workshop"]

ROWS_PER_PART = 4096  # of an order by parts; larger tiles hold whole parts, smaller ones halves of them

Tiles = tuple[str, int, int, int]
"""Order, threads, cache and coarse tile: what a schedule depends on."""


class Workshop:
    """Makes executors of one problem; what several choices have in common is made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._orders: dict[str, np.ndarray | None] = {"natural": None}
        self._loops: dict[str, FusedLoops] = {}
        self._schedules: dict[Tiles, TileSchedule] = {}

    def executor(self, choice: PairChoice) -> Executor:
        """Make what executes a choice.

        Raises:
            Unsupported: loops of different length cannot be fused; METIS is not installed.
        """
        return Executor(self.problem.op, self.schedule(choice), threads=choice.threads, variant=choice.variant,
                        order=self.order(choice.order))

    def schedule(self, choice: PairChoice) -> TileSchedule:
        """Inspect, or list both loops where nothing is to be fused."""
        key = (choice.order, choice.threads, choice.cache_bytes, choice.ct_size)
        if key not in self._schedules:
            self._schedules[key] = self._inspected(choice) if choice.fused else unfused_schedule(
                self.problem.graph, threads=choice.threads)
        return self._schedules[key]

    def order(self, name: str) -> np.ndarray | None:
        """Give an order of the iterations by its name; None for the natural one."""
        if name not in self._orders:
            self._orders[name] = _ORDERS[name](self.problem.graph)
        return self._orders[name]

    def keep_order(self, name: str, order: np.ndarray) -> None:
        """Take an order that was made before."""
        self._orders[name] = order

    def _inspected(self, choice: PairChoice) -> TileSchedule:
        if not self.problem.fusible:
            rows, cols = self.problem.graph.shape
            raise Unsupported(f"loops of {cols} and {rows} iterations: only loops of one length are fused; take "
                              f"fuse=\"never\"")
        if choice.order not in self._loops:
            self._loops[choice.order] = self.problem.loops(self.order(choice.order))
        return schedule_tiles(self._loops[choice.order], threads=choice.threads, cache_bytes=choice.cache_bytes,
                              ct_size=choice.ct_size)


def _parts(pattern: Pattern) -> int:
    return max(1, round(pattern.rows / ROWS_PER_PART))


_ORDERS: Mapping[str, Callable[[Pattern], np.ndarray]] = {
    "bandwidth": bandwidth_order,
    "partition": lambda pattern: partition_order(pattern, parts=_parts(pattern)),
    "metis": lambda pattern: metis_order(pattern, parts=_parts(pattern)),
}
