"""Which plans look fast: what a cost model of dispatch is asked, and a learned one behind the same question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparloom.space import Config
from sparloom.tuning.problem import Problem

__all__ = ["LearnedPairCosts", "PairCostModel", "pair_numbers"]

TILES = (1024, 2048, 4096, 8192, 16384)  # iterations, for which it is said what would be fused
UNLIMITED = 1 << 62  # bytes


class PairCostModel(Protocol):
    """Orders configurations of `sparloom.space.TileFusionSpace` for one problem."""

    def score(self, problem: Problem, configs: Sequence[Config]) -> np.ndarray:
        """Score configurations, (configs,): low = fast; scores of different problems do not compare."""


class Scorer(Protocol):
    """A model over fixed configurations, such as `sparloom.models.performance.Candidates`."""

    def score(self, problems: Mapping[str, np.ndarray]) -> np.ndarray:
        """Score, (problems, configs): low = fast."""


class Predictor(Protocol):
    """A model of how fast configurations are, such as `sparloom.models.performance.PerformanceModel`."""

    def over(self, configs: Sequence[Config]) -> Scorer:
        """Fix the configurations."""


def pair_numbers(problem: Problem, *, threads: int) -> dict[str, float]:
    """Describe a problem to a model that learns, in time linear in the nonzeros.

    Returns:
        rows, nnz (of A), right_nnz (of B where it is sparse), width, inner, element_bytes; fused_<n> and needed_<n>:
        see `Tiling`, in natural order, for tiles of n iterations.
    """
    numbers = {
        "rows": problem.pattern.rows, "nnz": problem.pattern.nnz,
        "right_nnz": 0 if problem.right is None else problem.right.nnz, "width": problem.width,
        "inner": problem.inner, "element_bytes": problem.element_bytes,
    }
    for size in TILES:
        tiling = problem.sketch().tiling(ct_size=size, cache_bytes=UNLIMITED, threads=threads)
        numbers |= {f"fused_{size}": tiling.fused_rows, f"needed_{size}": tiling.needed_rows}
    return {name: float(value) for name, value in numbers.items()}


@dataclass(frozen=True)
class LearnedPairCosts:
    """A performance model trained on samples of fused and unfused pairs, as a cost model of dispatch.

    Args:
        model: its features may read `pair_numbers`.
        threads: of the executor.
    """

    model: Predictor
    threads: int

    def score(self, problem: Problem, configs: Sequence[Config]) -> np.ndarray:
        """Score configurations, (configs,): low = fast."""
        numbers = pair_numbers(problem, threads=self.threads)
        return self.model.over(configs).score({name: np.array([value]) for name, value in numbers.items()})[0]
