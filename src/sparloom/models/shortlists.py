"""Models that rank sparse CPU kernels for the shortlists of online tuning: fine-tuned networks and boosted trees."""

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

SPACES: Mapping[str, Callable[[int], GridSpace]] = {"spmm": SpmmSpace, "sddmm": SddmmSpace}
SPECS: Mapping[str, FeatureSpec] = {spec.op: spec for spec in (SPMM_FEATURES, SDDMM_FEATURES)}
PLATFORM = "cpu_kernels"


class NetworkShortlists:
    """Ranks configurations with the network of the operation that was fine-tuned at the nearest width.

    Networks read the width only through the extents of loops, so one is fine-tuned for each of a few widths.

    Args:
        models: (operation, width) -> model.
    """

    def __init__(self, models: Mapping[tuple[str, int], CognateModel]) -> None:
        self._models = dict(models)
        self._matrices = OneEntryCache(MatrixFeatures.from_pattern)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast.

        Raises:
            Unsupported: no network for this operation, a matrix without nonzeros, or a configuration outside the
                network's space.
        """
        widths = [width for known, width in self._models if known == op]
        if not widths:
            raise Unsupported(f"there are networks only for {', '.join(sorted({known for known, _ in self._models}))}")
        pattern = operands.matrix.pattern
        if not pattern.nnz:
            raise Unsupported("the matrix has no nonzeros for a network to read")
        width = min(widths, key=lambda known: (abs(math.log(known / operands.width)), known))
        model = self._models[op, width]
        try:
            for config in configs:
                model.space.validate(config)
        except IllegalSchedule as error:
            raise Unsupported(f"the network of {op} with {width} columns: {error}") from None
        return model.score(self._matrices.get(pattern), configs)


def load_networks(files: Sequence[Path], *, threads: int) -> NetworkShortlists:
    """Load networks that experiment=finetune_cpu_kernels saved.

    Args:
        files: one checkpoint per operation and width.
        threads: number of kernel threads; networks ignore it.

    Raises:
        SchemaError: a file does not hold such a network, or one for another version of the space.
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
            raise SchemaError(f"{path} was made for another space of {stored.op}: the space has changed, run "
                              f"experiment=finetune_cpu_kernels op={stored.op} target.width={width}")
        models[stored.op, width] = CognateModel(restore_cognate(stored, path), space)
    return NetworkShortlists(models)


class TreeShortlists:
    """Ranks configurations with the performance model of the operation, for any width.

    Args:
        models: operation -> model.
        threads: number of kernel threads, which may differ from that in training.
    """

    def __init__(self, models: Mapping[str, PerformanceModel], *, threads: int) -> None:
        self._models, self._threads = dict(models), threads
        self._statistics = OneEntryCache(statistics)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast.

        Raises:
            Unsupported: no model for this operation, a problem outside the models, or configurations of another
                space.
        """
        if op not in self._models:
            raise Unsupported(f"there are trees only for {', '.join(sorted(self._models))}")
        model, numbers = self._models[op], self._statistics.get(operands.matrix.pattern)
        problem = {name: np.array([numbers[name]], np.float64) for name in STATISTICS} | {
            "width": np.array([operands.width], np.float64), "threads": np.array([self._threads], np.float64)}
        foreign = [config.space for config in configs if config.space != model.origin.platform]
        if foreign:
            raise Unsupported(f"the trees of {op} score configurations of {model.origin.platform}, not of {foreign[0]}")
        constants = {name: np.array([value]) for name, value in model.origin.machine.items()}
        if model.falls_back(constants | problem).any():
            raise Unsupported(f"trees do not apply where {model.spec.fallback}")
        try:
            return model.over(configs).score(problem)[0]
        except KeyError as error:
            raise Unsupported(f"the trees of {op} read {error}, which the configurations do not have") from None


def load_trees(folders: Sequence[Path], *, threads: int) -> TreeShortlists:
    """Load performance models that experiment=fit_trees saved; a later model of an operation replaces an earlier one.

    Args:
        folders: one folder with a model.json per model.

    Raises:
        SchemaError: a folder does not hold a model of sparse CPU kernels, or one of other features.
    """
    models = {}
    for folder in folders:
        model = load_performance(folder, platform=PLATFORM)
        if model.spec.op not in SPECS:
            raise SchemaError(f"{folder} holds trees of {model.spec.op}: give trees of {' or '.join(SPECS)}")
        SPECS[model.spec.op].check(model.spec, origin=str(folder))
        models[model.spec.op] = model
    return TreeShortlists(models, threads=threads)
