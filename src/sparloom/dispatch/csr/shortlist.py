"""Which few kernels of a space are worth a measurement."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sparloom.ops import Operands
from sparloom.space import Config

__all__ = ["CsrCostModel", "shortlist"]

SET_APART = "order"  # what an estimate does not see: of each of its values one is measured


class CsrCostModel(Protocol):
    """Orders configurations of one operation for one problem."""

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score, (configs,): low = fast.

        Raises:
            Unsupported: the model was not trained for this; a formula is asked in its place.
        """


def shortlist(
    model: CsrCostModel, op: str, operands: Operands, configs: Sequence[Config], *, count: int,
) -> list[Config]:
    """Choose the most promising configurations, best first, with at least one of each order of the rows."""
    ranked = [configs[place] for place in np.argsort(model.score(op, operands, configs), kind="stable")]
    chosen = ranked[:count]
    for value in dict.fromkeys(config[SET_APART] for config in ranked):
        if all(config[SET_APART] != value for config in chosen):
            chosen[-1] = next(config for config in ranked if config[SET_APART] == value)
    return chosen
