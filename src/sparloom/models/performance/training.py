"""Train a performance model from nothing or on top of an earlier one; its lineage says how it came about."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sparloom.errors import SchemaError
from sparloom.models.performance.cross_fit import cross_fit
from sparloom.models.performance.features import FeatureSpec
from sparloom.models.performance.folds import assign_folds
from sparloom.models.performance.grid import Grid, Measured
from sparloom.models.performance.growth import Growth
from sparloom.models.performance.model import Origin, PerformanceModel
from sparloom.models.performance.store import digest
from sparloom.models.performance.target import Target

__all__ = ["fold_of", "grow_further", "train_performance"]


def train_performance(
    measured: Measured, *, spec: FeatureSpec, target: Target, origin: Origin, growth: Growth, folds: int,
    hardware: bool = False,
) -> PerformanceModel:
    """Train one member per fold of the groups.

    Args:
        folds: how many.
        hardware: whether the features of the hardware are read: they vary.
    """
    grid = Grid.of(spec, measured, target=target, hardware=hardware)
    assigned = assign_folds(measured.groups, folds, seed=growth.seed)
    members = cross_fit(grid, growth, fold_of(measured, assigned))
    trees = sum(member.num_trees() for member in members)
    return PerformanceModel(
        spec=spec, target=target, origin=origin, names=grid.names, members=tuple(members), folds=assigned,
        lineage=(_entry(grid, base=None, new=trees, trees=trees),), threads=growth.threads)


def grow_further(base: PerformanceModel, measured: Measured, *, spec: FeatureSpec, growth: Growth) -> PerformanceModel:
    """Add trees to every member of a model, learned from other or more problems.

    Problems that the model knows stay in their folds, so members still have not seen what they are scored on. As many
    trees are added as `growth` says: a fold that could end the growth was seen by the trees that are there.

    Args:
        spec: features of this version.

    Raises:
        SchemaError: the model was trained on other features, or has no folds.
    """
    spec.check(base.spec, origin="the model to start from")
    if not base.folds:
        raise SchemaError("the model to start from is a single one without folds, such as a distilled one: start from "
                          "the one that experiment=fit_trees saves")
    hardware = any(feature.group == "hardware" for feature in spec.features if feature.name in base.names)
    grid = Grid.of(spec, measured, target=base.target, hardware=hardware)
    known = assign_folds(measured.groups, len(base.members), seed=growth.seed, known=base.folds)
    fold = fold_of(measured, known)
    members = [growth.grow(grid.rows(fold != place), grid.names, base=member)
               for place, member in enumerate(base.members)]
    trees = sum(member.num_trees() for member in members)
    return PerformanceModel(
        spec=spec, target=base.target, origin=base.origin, names=base.names, members=tuple(members),
        folds=dict(base.folds) | known, threads=growth.threads,
        lineage=(*base.lineage, _entry(grid, base=digest(base), new=trees - base.trees, trees=trees)))


def fold_of(measured: Measured, folds: Mapping[str, int]) -> np.ndarray:
    """Fold of each problem, (problems, 1)."""
    return np.array([[folds[group]] for group in measured.groups])


def _entry(grid: Grid, *, base: str | None, new: int, trees: int) -> dict[str, Any]:
    return {"base": base, "new_trees": new, "trees": trees, "rows": int(grid.ran.sum()),
            "problems": int(grid.ran.any(axis=1).sum()), "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
