"""From choices to what executes them: schedules and executors."""

from collections.abc import Sequence

from sparloom.fusion import Executor, TileSchedule, Workspace, schedule_tiles, unfused_schedule
from sparloom.jit import NativeCall
from sparloom.ops import Operands
from sparloom.tuning.choice import PairChoice
from sparloom.tuning.problem import Problem

__all__ = ["Workshop"]

Tiles = tuple[str, int, int, int]
"""Order, threads, cache and coarse tile: what a schedule depends on."""


class Workshop:
    """Makes executors of one problem. They share D1 and equal schedules: one at a time may execute."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._workspace = Workspace()
        self._schedules: dict[Tiles, TileSchedule] = {}

    def executor(self, choice: PairChoice) -> Executor:
        """Make what executes a choice.

        Raises:
            Unsupported: loops of different length cannot be fused; METIS is not installed.
        """
        return Executor(self.problem.op, self.schedule(choice), threads=choice.threads, variant=choice.variant,
                        order=self.problem.order(choice.order), workspace=self._workspace)

    def calls(self, operands: Operands, choices: Sequence[PairChoice]) -> list[NativeCall]:
        """Bind executors of choices to operands and one result."""
        executors = [self.executor(choice) for choice in choices]
        result = executors[0].result(operands)
        return [executor.bind(operands, result) for executor in executors]

    def schedule(self, choice: PairChoice) -> TileSchedule:
        """Inspect, or list both loops where nothing is to be fused."""
        key = (choice.order, choice.threads, choice.cache_bytes, choice.ct_size)
        if key not in self._schedules:
            self._schedules[key] = self._inspected(choice) if choice.fused else unfused_schedule(
                self.problem.graph, threads=choice.threads)
        return self._schedules[key]

    def _inspected(self, choice: PairChoice) -> TileSchedule:
        return schedule_tiles(self.problem.loops(choice.order), threads=choice.threads,
                              cache_bytes=choice.cache_bytes, ct_size=choice.ct_size)
