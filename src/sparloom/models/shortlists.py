"""COGNATE networks fine-tuned on sparse kernels of a CPU, behind the question that dispatch asks for its shortlists.

Performance models of sparse kernels on a CPU, behind the question that dispatch asks for its shortlists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sparloom.errors import IllegalSchedule, SchemaError, Unsupported
from sparloom.models.cognate.checkpoint import load_checkpoint
from sparloom.models.cognate.model import CognateModel, restore_cognate
from sparloom.models.cost_model import MatrixFeatures, OneEntryCache
from sparloom.models.performance import SDDMM_FEATURES, SPMM_FEATURES, FeatureSpec, PerformanceModel, load_performance
from sparloom.ops import Operands
from sparloom.space import Config, GridSpace, SddmmSpace, SpmmSpace
from sparloom.sparse import STATISTICS, statistics

__all__ = ["NetworkShortlists", "TreeShortlists", "load_networks", "load_trees"]

SPACES: Mapping[str, Callable[[int], GridSpace]] = {"spmm": SpmmSpace, "sddmm": SddmmSpace}
PLATFORM = "cpu_kernels"


class NetworkShortlists:
    """Orders configurations by the network of their operation that was fine-tuned at the nearest width.

    A network does not read the width but by the extents of the loops, so one is fine-tuned at each of a few.

    Args:
        models: (operation, width) -> model.
    """

    def __init__(self, models: Mapping[tuple[str, int], CognateModel]) -> None:
        self._models = dict(models)
        self._matrices = OneEntryCache(MatrixFeatures.from_pattern)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast.

        Raises:
            Unsupported: no network of this operation, a matrix without nonzeros, or a configuration that the network
                has not seen.
        """
        widths = [width for known, width in self._models if known == op]
        if not widths:
            raise Unsupported(f"the networks are of {', '.join(sorted({known for known, _ in self._models}))}")
        pattern = operands.matrix.pattern
        if not pattern.nnz:
            raise Unsupported("a network reads the places of nonzeros, and there are none")
        width = min(widths, key=lambda known: (abs(math.log(known / operands.width)), known))
        model = self._models[op, width]
        try:
            for config in configs:
                model.space.validate(config)
        except IllegalSchedule as error:
            raise Unsupported(f"the network of {op} with {width} columns: {error}") from None
        return model.score(self._matrices.get(pattern), configs)


def load_networks(files: Sequence[Path], *, threads: int) -> NetworkShortlists:
    """Read networks, as experiment=finetune_cpu_kernels saves them.

    Args:
        files: one for each operation and width.
        threads: of the kernels; networks do not read it.

    Raises:
        SchemaError: a file holds no such network, or one for an earlier version of the space.
    """
    models = {}
    for path in files:
        stored = load_checkpoint(path, kind="cognate", platform=PLATFORM)
        width = stored.notes.get("width")
        if stored.op not in SPACES or not isinstance(width, int):
            raise SchemaError(f"{path} is a network of {stored.op} for width {width}: give one of "
                              f"{' or '.join(SPACES)} from experiment=finetune_cpu_kernels")
        space = SPACES[stored.op](width)
        if stored.space != space.digest():
            raise SchemaError(f"{path} was made for another space of {stored.op}: the space has changed since, run "
                              f"experiment=finetune_cpu_kernels op={stored.op} target.width={width}")
        models[stored.op, width] = CognateModel(restore_cognate(stored, path), space)
    return NetworkShortlists(models)


SPECS: Mapping[str, FeatureSpec] = {spec.op: spec for spec in (SPMM_FEATURES, SDDMM_FEATURES)}


class TreeShortlists:
    """Orders configurations by the performance model of their operation, for any width.

    Args:
        models: operation -> model.
        threads: of the kernels; whatever number the models were trained with.
    """

    def __init__(self, models: Mapping[str, PerformanceModel], *, threads: int) -> None:
        self._models, self._threads = dict(models), threads
        self._statistics = OneEntryCache(statistics)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast.

        Raises:
            Unsupported: no model of this operation, a problem that none is asked about, or configurations of another
                space.
        """
        if op not in self._models:
            raise Unsupported(f"the trees are of {', '.join(sorted(self._models))}")
        model, found = self._models[op], self._statistics.get(operands.matrix.pattern)
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


def load_trees(folders: Sequence[Path], *, threads: int) -> TreeShortlists:
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
