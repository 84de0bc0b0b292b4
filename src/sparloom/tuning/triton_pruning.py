"""Prune the configurations of `triton.autotune` by a model that is fitted to measured trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparloom.data import checked_seconds
from sparloom.errors import SchemaError
from sparloom.models import Surrogate
from sparloom.space import SearchParameter, SearchSpace
from sparloom.tuning.encoding import SpaceEncoding
from sparloom.tuning.engine import MAX_CONDITIONED, ONLY

if TYPE_CHECKING:
    import pandas as pd

RESULTS = ("seconds", "failure")


def prune_configs_by(trials: pd.DataFrame, top_k: int | float = 8) -> dict[str, Any]:
    """Fit a model of seconds, and return what `triton.autotune(prune_configs_by=...)` takes.

    Triton then times only the `top_k` configurations that the model expects to be fastest.

    Args:
        trials: a column for every parameter that matters, such as BLOCK_M, num_warps or num_stages, one for every
            argument of the kernel that does, such as M or N, and seconds. Failures (NaN) are left out.
        top_k: how many configurations remain, or which share of them.

    Raises:
        SchemaError: there are fewer than three trials with seconds, or no column that varies.
        ValueError: seconds are not positive.
    """
    trials = trials[trials["seconds"].notna()]
    names = [name for name in trials if name not in RESULTS and trials[name].nunique() > 1]
    if len(trials) < 3 or not names:
        raise SchemaError(f"{len(trials)} trials with seconds, and {len(names)} columns that vary: give at least three "
                          "trials that differ")
    space = SearchSpace("triton", tuple(
        SearchParameter.of_values(str(name), sorted(set(trials[name]))) for name in names))
    logs = np.log(checked_seconds(trials["seconds"].to_numpy(), lambda row: f"trial {row}"))
    return {"perf_model": _TimeModel(space, {str(name): trials[name].tolist() for name in names}, logs),
            "top_k": top_k}


class _TimeModel:
    """Seconds of a configuration, called with the arguments of the kernel and the configuration by name."""

    def __init__(self, space: SearchSpace, values: dict[str, list[Any]], logs: np.ndarray) -> None:
        self._space, self._encoding = space, SpaceEncoding(space, {ONLY: {}})
        rows = np.random.default_rng(0).permutation(len(logs))[:MAX_CONDITIONED]
        columns = {each.name: each.column([each.parse(value) for value in values[each.name]])[rows]
                   for each in space.parameters}
        self._mean, self._scale = logs[rows].mean(), max(1e-3, logs[rows].std())
        points, targets = self._encoding.points(ONLY, columns), (logs[rows] - self._mean) / self._scale
        self._posterior = Surrogate(self._encoding.priors).fit(points, targets).condition(points, targets)

    def __call__(self, **arguments: Any) -> float:
        """Return the expected seconds.

        Raises:
            SchemaError: an argument that varied among the trials is missing, or is a category that none of them had.
        """
        missing = [name for name in self._space.names if name not in arguments]
        if missing:
            raise SchemaError(f"the trials differ in {missing[0]}, which is neither an argument of the kernel nor of "
                              f"its configurations: there are {', '.join(arguments)}; leave the column out")
        columns = {each.name: each.column([each.parse(arguments[each.name]) if each.is_text else arguments[each.name]])
                   for each in self._space.parameters}
        mean, _ = self._posterior.at(self._encoding.points(ONLY, columns))
        return float(np.exp(mean[0] * self._scale + self._mean))
