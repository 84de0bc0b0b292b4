"""In which order the unknowns of an iteration lie in memory, and the plan for it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparloom.dispatch import PairPlan
from sparloom.fusion import Reordered, bandwidth_order
from sparloom.sparse import SparseMatrix

__all__ = ["NUMBERINGS", "Numbering", "Plan", "better_numbering", "numbering_of"]

NUMBERINGS = ("auto", "natural", "bandwidth")
GAIN = 0.95  # of the time: renumbering costs a copy of every operand and result

Plan = Callable[[SparseMatrix, str | None], PairPlan]
"""Plans two steps with a matrix; with another `fuse` than the solver's if one is given."""


@dataclass(frozen=True)
class Numbering:
    """M with its rows and columns in an order, and how it is multiplied.

    Args:
        order: (n,) int32, the old number of each new row; None: as they are.
    """

    matrix: SparseMatrix
    order: np.ndarray | None
    plan: PairPlan

    def taken(self, rows: np.ndarray) -> np.ndarray:
        """Bring rows of a dense array into the order."""
        return rows if self.order is None else rows[self.order]

    def given_back(self, rows: np.ndarray) -> np.ndarray:
        """Bring rows of a dense array back."""
        if self.order is None:
            return rows
        back = np.empty_like(rows)
        back[self.order] = rows
        return back


def numbering_of(name: str, matrix: SparseMatrix, plan: Plan) -> Numbering:
    """Number rows "natural", as they are, or "bandwidth", by reverse Cuthill-McKee."""
    if name == "natural":
        return Numbering(matrix, None, plan(matrix, None))
    order = bandwidth_order(matrix.pattern)
    reordered = Reordered.of(matrix.pattern, order)
    moved = SparseMatrix(reordered.pattern, reordered.values(matrix.values), matrix.dtype)
    return Numbering(moved, order, plan(moved, None))


def better_numbering(matrix: SparseMatrix, plan: Plan) -> Numbering:
    """Take the one whose plan was faster when it was decided."""
    natural = numbering_of("natural", matrix, plan)
    other = numbering_of("bandwidth", matrix, plan)
    seconds = [_seconds(each, plan) for each in (natural, other)]
    return other if None not in seconds and seconds[1] < GAIN * seconds[0] else natural


def _seconds(numbering: Numbering, plan: Plan) -> float | None:
    """What the chosen program took when it was chosen; None where nothing was measured."""
    for decision in (numbering.plan.decision, plan(numbering.matrix, "never").decision):
        taken = [trial.seconds for trial in decision.trials
                 if trial.candidate == numbering.plan.choice.key and trial.seconds]
        if taken:
            return float(np.median(taken[-1]))
    return None
