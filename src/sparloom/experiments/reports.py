"""Values that a run passes on while it trains, so that a sweep can end a hopeless run."""

import logging
from collections.abc import Mapping
from pathlib import Path

from sparloom.intermediate import report

__all__ = ["Reports"]

STRIDE = 100_000  # between the steps of two trainings: no training has so many epochs
logger = logging.getLogger(__name__)


class Reports:
    """Passes on one metric at every validation; its steps count through all trainings of a run.

    Trials of a sweep are compared at equal steps, so every training of a run has steps of its own: the epoch, plus
    STRIDE for each training before.

    Args:
        out: folder of the run.
        metric: name under which it is logged; None: nothing is passed on.
    """

    def __init__(self, out: Path, metric: str | None) -> None:
        self.out = out
        self.metric = metric
        self._trainings = 0

    def begin(self) -> None:
        """Begin another training."""
        self._trainings += 1

    def add(self, epoch: int, logged: Mapping[str, float]) -> bool:
        """Pass on the metric of an epoch and say whether the run shall end here."""
        if self.metric is None:
            return False
        if self.metric not in logged:
            logger.warning("task.recipe.reported=%s is not logged, so no sweep can end this run: choose from %s",
                           self.metric, ", ".join(logged))
            self.metric = None
            return False
        return report(self.out, step=(self._trainings - 1) * STRIDE + epoch, value=logged[self.metric])
