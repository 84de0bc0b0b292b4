"""Which few kernels of a space are worth a measurement."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from sparloom.ops import Operands
from sparloom.space import Config

__all__ = ["CsrCostModel", "shortlist"]


class CsrCostModel(Protocol):
    """Orders configurations of one operation for one problem."""

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score, (configs,): low = fast.

        Raises:
            Unsupported: the model was not trained for this; a formula is asked in its place.
        """


def shortlist(
    model: CsrCostModel, op: str, operands: Operands, configs: Sequence[Config], *, count: int,
    kind: Callable[[Config], str],
) -> list[Config]:
    """Choose the most promising configurations, best first, with at least one of each kind as far as they suffice.

    Args:
        count: of them; where there are more kinds, these are each of another kind.
        kind: of a configuration, in which an estimate does not see enough to leave one out.
    """
    ranked = [configs[place] for place in np.argsort(model.score(op, operands, configs), kind="stable")]
    chosen = ranked[:count]
    for missing in dict.fromkeys(map(kind, ranked)):
        held = Counter(map(kind, chosen))
        if missing not in held:
            last = max((place for place, config in enumerate(chosen) if held[kind(config)] > 1), default=None)
            if last is None:
                break
            del chosen[last]
            chosen.append(next(config for config in ranked if kind(config) == missing))
    return chosen
