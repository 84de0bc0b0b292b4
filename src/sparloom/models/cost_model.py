"""Cost models: what search asks which configuration looks fastest; the one that looks at no pattern."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from jaxtyping import Float

from sparloom.models.view import MatrixView
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["CostModel", "Static", "view_of"]

RIDGE = 1.0  # of the additive model that stands in for untried configurations, in units of one observation


class CostModel(Protocol):
    """Orders configurations for a matrix it may never have seen."""

    def score(self, matrix: Pattern | MatrixView, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast; scores of different matrices do not compare."""


def view_of(matrix: Pattern | MatrixView) -> MatrixView:
    """Look at a matrix, unless that was done before."""
    return MatrixView.of(matrix) if isinstance(matrix, Pattern) else matrix


class Static:
    """Rank configurations by their geometric mean on the training matrices, whichever matrix is asked about.

    Few configurations are tried on all of them. A missing time is filled in by a ridge regression of log seconds on the
    values of parameters and of pairs of parameters; where all were tried, nothing is estimated.
    """

    def __init__(self) -> None:
        self._scores: Mapping[str, float] = {}

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace) -> "Static":
        """Learn from columns matrix, config, seconds; returns a new model."""
        times = labels.pivot_table(index="matrix", columns="config", values="seconds", aggfunc="median")
        known = np.log(times.to_numpy(np.float64))
        configs = [config for config in _grid(space, times.columns)]
        columns = {key: place for place, key in enumerate(times.columns)}
        table = np.full((len(times), len(configs)), np.nan)
        for place, config in enumerate(configs):
            if config.key in columns:
                table[:, place] = known[:, columns[config.key]]
        fitted = Static()
        fitted._scores = dict(zip((config.key for config in configs), _complete(table, configs), strict=True))
        return fitted

    def score(self, matrix: Pattern | MatrixView, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        return self.rate(configs)

    def rate(self, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations, whatever they run on: low = fast."""
        missing = [config.key for config in configs if config.key not in self._scores]
        if missing:
            raise ValueError(f"configuration {missing[0]} was not in the space at fit: fit Static on this space first")
        return np.array([self._scores[config.key] for config in configs])


def _grid(space: ConfigSpace, tried: Sequence[str]) -> list[Config]:
    """All configurations of a small space, the tried ones of a large one."""
    if len(space) <= 4096:
        return list(space)
    return [Config.parse(space.name, key) for key in tried]


def _complete(table: np.ndarray, configs: Sequence[Config]) -> np.ndarray:
    """Fill gaps of (matrices, configs) log seconds, then average over matrices."""
    known = np.isfinite(table)
    design = _indicators(configs)
    rows, cols = np.nonzero(known)
    matrices = np.eye(len(table))[rows]
    inputs = np.concatenate([matrices * 1e3, design[cols]], axis=1)  # 1e3: matrix levels are not shrunk
    weights = np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ table[known])
    level, effect = weights[:len(table)] * 1e3, design @ weights[len(table):]
    return np.where(known, table, level[:, None] + effect[None, :]).mean(axis=0)


def _indicators(configs: Sequence[Config]) -> np.ndarray:
    """One column per value of a parameter and per pair of values of two parameters that occurs."""
    places: dict[tuple, int] = {}
    entries = []
    for config in configs:
        values = config.values
        terms = [*values, *((a, b) for at, a in enumerate(values) for b in values[at + 1:])]
        entries.append([places.setdefault(term, len(places)) for term in terms])
    design = np.zeros((len(configs), len(places)))
    for row, columns in enumerate(entries):
        design[row, columns] = 1
    return design
