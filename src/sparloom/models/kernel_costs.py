"""A performance model of a sparse operation as a cost model: it ranks configurations for a pattern."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sparloom.models.cost_model import MatrixView, view_of
from sparloom.models.performance import PerformanceModel
from sparloom.space import Config
from sparloom.sparse import STATISTICS, Pattern

__all__ = ["KernelCosts"]


@dataclass(frozen=True)
class KernelCosts:
    """Scores of a performance model at one width of the dense operands.

    Args:
        model: of SpMM or SDDMM.
    """

    model: PerformanceModel
    width: int

    def score(self, matrix: Pattern | MatrixView, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast; scores of different matrices do not compare."""
        statistics = view_of(matrix).statistics
        problem = {name: np.array([statistics[name]]) for name in STATISTICS} | {"width": np.array([self.width])}
        return self.model.over(configs).score(problem)[0]
