"""Iterative mining of hard examples: problems whose configurations are chosen badly weigh more in the next round.

Train a performance model from nothing or on top of an earlier one; its lineage says how it came about.

A small model that predicts what a large one predicts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from jaxtyping import Float

from sparloom.errors import SchemaError
from sparloom.models.performance.features import FeatureSpec
from sparloom.models.performance.growth import (
    BoostingConfig,
    Grid,
    Measured,
    Rows,
    Target,
    assign_folds,
    cross_fit,
    out_of_fold,
)
from sparloom.models.performance.model import Origin, PerformanceModel
from sparloom.models.performance.store import digest
from sparloom.space import Config

__all__ = ["Mining", "continue_training", "distil", "mine_hard_examples", "problem_folds", "train_performance"]

Judge = Callable[[Float[np.ndarray, "problems configs"]], Float[np.ndarray, " problems"]]
"""Predictions on the scale of the target -> efficiency of the choice on each problem."""


@dataclass(frozen=True)
class Mining:
    """How weights grow.

    Args:
        rounds: after the first, in which all weigh the same.
        share: of the problems, those with the least efficiency, that are hard.
        factor: by which the weight of a hard problem grows in each round.
        most: limit of a weight.
    """

    rounds: int
    share: float
    factor: float
    most: float


def mine_hard_examples(
    grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, mining: Mining, judge: Judge
) -> Iterator[Float[np.ndarray, "problems configs"]]:
    """Yield the predictions out of fold of every round, the first without weights.

    What is hard is judged within the training part of each fold: one of its other folds at a time is held out. So the
    fold that is scored has no part in the weights either.

    Args:
        folds: (problems, 1).
        growth: all its trees are grown, in every round.

    Source: CK Tile learnings §3: weights of 2 to 5 on hard shapes, over three iterations.
    """
    count = int(folds.max()) + 1
    weights = np.ones((count, len(grid.targets)))
    for turn in range(mining.rounds + 1):
        members = [growth.train(grid.rows(folds != fold, weights[fold][:, None]), grid.names) for fold in range(count)]
        yield out_of_fold(grid, members, folds, threads=growth.threads)
        if turn < mining.rounds:
            for fold in range(count):
                found = judge(_within(grid, growth, folds, fold, weights[fold]))
                inside = (folds != fold).ravel()
                hard = inside & (found <= np.quantile(found[inside], mining.share))
                weights[fold, hard] = np.minimum(mining.most, weights[fold, hard] * mining.factor)


def _within(grid: Grid, growth: BoostingConfig, folds: np.ndarray, fold: int, weights: np.ndarray) -> np.ndarray:
    """Predict the training part of a fold, each other fold by a model without it; the fold itself stays 0."""
    found = np.zeros(grid.targets.shape)
    for other in range(int(folds.max()) + 1):
        if other == fold:
            continue
        member = growth.train(grid.rows((folds != fold) & (folds != other), weights[:, None]), grid.names)
        asked = (folds == other).ravel()
        found[asked] = member.predict(grid.features[asked].reshape(-1, grid.features.shape[-1]),
                                      num_threads=growth.threads).reshape(asked.sum(), -1)
    return found


def train_performance(
    measured: Measured, *, spec: FeatureSpec, target: Target, origin: Origin, growth: BoostingConfig, folds: int,
    hardware: bool = False,
) -> PerformanceModel:
    """Train one member per fold of the groups.

    Args:
        folds: how many.
        hardware: whether the features of the hardware are read: they vary.
    """
    grid = Grid.of(spec, measured, target=target, hardware=hardware)
    assigned = assign_folds(measured.groups, folds, seed=growth.seed)
    members = cross_fit(grid, growth, problem_folds(measured, assigned))
    trees = sum(member.num_trees() for member in members)
    return PerformanceModel(
        spec=spec, target=target, origin=origin, names=grid.names, members=tuple(members), folds=assigned,
        lineage=(_entry(grid, base=None, new=trees, trees=trees),), threads=growth.threads)


def continue_training(
    base: PerformanceModel, measured: Measured, *, spec: FeatureSpec, growth: BoostingConfig
) -> PerformanceModel:
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
    fold = problem_folds(measured, known)
    members = [growth.train(grid.rows(fold != place), grid.names, base=member)
               for place, member in enumerate(base.members)]
    trees = sum(member.num_trees() for member in members)
    return PerformanceModel(
        spec=spec, target=base.target, origin=base.origin, names=base.names, members=tuple(members),
        folds=dict(base.folds) | known, threads=growth.threads,
        lineage=(*base.lineage, _entry(grid, base=digest(base), new=trees - base.trees, trees=trees)))


def problem_folds(measured: Measured, folds: Mapping[str, int]) -> np.ndarray:
    """Fold of each problem, (problems, 1)."""
    return np.array([[folds[group]] for group in measured.groups])


def _entry(grid: Grid, *, base: str | None, new: int, trees: int) -> dict[str, Any]:
    return {"base": base, "new_trees": new, "trees": trees, "rows": int(grid.ran.sum()),
            "problems": int(grid.ran.any(axis=1).sum()), "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


CHUNK = 256  # problems whose features are held at a time


def distil(
    model: PerformanceModel, problems: Mapping[str, np.ndarray], configs: Sequence[Config], *, growth: BoostingConfig,
    focus: float, share: float,
) -> PerformanceModel:
    """Let a single model learn the predictions of a large one, which need no measurement and have no noise.

    Args:
        problems: as many as the small model needs, none of them measured, (problems,) each.
        growth: of the small model; it grows all its trees.
        focus: weight of a row is (predicted rate over that of the best configuration of its problem) to this power.
        share: of the rows of each problem, drawn; the best tenth is always among them.
    """
    candidates = model.over(configs)
    rng = np.random.default_rng(growth.seed)
    features, targets, weights = [], [], []
    total = len(next(iter(problems.values())))
    for start in range(0, total, CHUNK):
        part = {name: column[start : start + CHUNK] for name, column in problems.items()}
        learned = candidates.learned(part)
        behind = _behind(model, learned)
        kept = (rng.random(learned.shape) < share) | (behind <= np.quantile(behind, 0.1, axis=1, keepdims=True))
        features.append(candidates.features(part)[kept])
        targets.append(learned[kept])
        weights.append(np.exp(-focus * behind[kept]))
    rows = Rows(np.concatenate(features), np.concatenate(targets), np.concatenate(weights))
    small = growth.train(rows, model.names)
    entry = {"distilled_from": digest(model), "trees": small.num_trees(), "rows": len(rows), "problems": total,
             "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return replace(model, members=(small,), folds={}, lineage=(*model.lineage, entry))


def _behind(model: PerformanceModel, learned: np.ndarray) -> np.ndarray:
    """Logarithm of the best predicted rate of each problem over that of a configuration."""
    restored = np.maximum(model.target.restore(learned), np.finfo(np.float64).tiny)
    rates = -model.target.sign * np.log(restored)
    return rates.max(axis=1, keepdims=True) - rates
