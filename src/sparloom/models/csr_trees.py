"""Performance models of sparse kernels on a CPU, behind the question that dispatch asks for its shortlists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sparloom.errors import SchemaError, Unsupported
from sparloom.models.last_seen import LastSeen
from sparloom.models.performance import (
    SDDMM_FEATURES,
    SPMM_FEATURES,
    FeatureSpec,
    PerformanceModel,
    load_performance,
)
from sparloom.ops import Operands
from sparloom.space import Config
from sparloom.sparse import STATISTICS, statistics

__all__ = ["TreeShortlists", "open_trees"]

SPECS: Mapping[str, FeatureSpec] = {spec.op: spec for spec in (SPMM_FEATURES, SDDMM_FEATURES)}
PLATFORM = "cpu_kernels"


class TreeShortlists:
    """Orders configurations by the performance model of their operation, for any width.

    Args:
        models: operation -> model.
        threads: of the kernels; whatever number the models were trained with.
    """

    def __init__(self, models: Mapping[str, PerformanceModel], *, threads: int) -> None:
        self._models, self._threads = dict(models), threads
        self._statistics = LastSeen(statistics)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast.

        Raises:
            Unsupported: no model of this operation, a problem that none is asked about, or configurations of another
                space.
        """
        if op not in self._models:
            raise Unsupported(f"the trees are of {', '.join(sorted(self._models))}")
        model, found = self._models[op], self._statistics.of(operands.matrix.pattern)
        problem = {name: np.array([found[name]], np.float64) for name in STATISTICS} | {
            "width": np.array([operands.width], np.float64), "threads": np.array([self._threads], np.float64)}
        foreign = [config.space for config in configs if config.space != model.origin.platform]
        if foreign:
            raise Unsupported(f"the trees of {op} know configurations of {model.origin.platform}, not {foreign[0]}")
        if model.falls_back(_constants(model) | problem).any():
            raise Unsupported(f"no trees are asked where {model.spec.fallback}")
        try:
            return model.over(configs).score(problem)[0]
        except KeyError as error:
            raise Unsupported(f"the trees of {op} read {error}, which its configurations do not have") from None


def open_trees(folders: Sequence[Path], *, threads: int) -> TreeShortlists:
    """Read performance models, as experiment=fit_trees saves them; of one operation twice, the last counts.

    Args:
        folders: each with a model.json.

    Raises:
        SchemaError: a folder holds none, or one that is not of sparse kernels on a CPU as they are now.
    """
    models = {}
    for folder in folders:
        model = load_performance(folder, platform=PLATFORM)
        if model.spec.op not in SPECS:
            raise SchemaError(f"{folder} holds trees of {model.spec.op}: give those of {' or '.join(SPECS)}")
        SPECS[model.spec.op].check(model.spec, origin=str(folder))
        models[model.spec.op] = model
    return TreeShortlists(models, threads=threads)


def _constants(model: PerformanceModel) -> Mapping[str, np.ndarray]:
    return {name: np.array([value]) for name, value in model.origin.machine.items()}
