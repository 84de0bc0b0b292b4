"""Training of performance models: from scratch, on top of an earlier model, with hard examples, and by distillation."""

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
    TreeCount,
    assign_folds,
    cross_fit,
    out_of_fold,
)
from sparloom.models.performance.model import Origin, PerformanceModel
from sparloom.models.performance.store import digest
from sparloom.space import Config

CHUNK = 256  # problems whose features are in memory at a time
Judge = Callable[[Float[np.ndarray, "problems configs"]], Float[np.ndarray, " problems"]]
"""Maps predictions on the scale of the target to the efficiency of the choice on each problem."""


@dataclass(frozen=True)
class Mining:
    """Settings of hard-example mining.

    Args:
        rounds: number of rounds after the first, in which all weights are equal.
        share: share of the problems, those with the lowest efficiency, that count as hard.
        factor: factor on the weight of a hard problem in each round.
        most: largest weight.
    """

    rounds: int
    share: float
    factor: float
    most: float


def mine_hard_examples(
    grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, mining: Mining, judge: Judge
) -> Iterator[Float[np.ndarray, "problems configs"]]:
    """Yield the out-of-fold predictions of every round, with larger weights for problems whose choice was bad.

    Hard problems are determined within the training part of each fold, with one of its other folds held out at a time,
    so that the scored fold does not affect the weights.

    Args:
        folds: (problems, 1).
        growth: settings; every round trains all trees.

    Source: CK Tile learnings §3: weights of 2 to 5 on hard shapes, over three iterations.
    """
    count = int(folds.max()) + 1
    weights = np.ones((count, len(grid.targets)))
    for round_index in range(mining.rounds + 1):
        members = [growth.train(grid.rows(folds != fold, weights[fold][:, None]), grid.names)
                   for fold in range(count)]
        yield out_of_fold(grid, members, folds, threads=growth.threads)
        if round_index < mining.rounds:
            for fold in range(count):
                efficiency = judge(_predict_within(grid, growth, folds, fold, weights[fold]))
                inside = (folds != fold).ravel()
                hard = inside & (efficiency <= np.quantile(efficiency[inside], mining.share))
                weights[fold, hard] = np.minimum(mining.most, weights[fold, hard] * mining.factor)


def _predict_within(
    grid: Grid, growth: BoostingConfig, folds: np.ndarray, fold: int, weights: np.ndarray
) -> np.ndarray:
    """Predict the training part of a fold, every other fold out of fold; the fold itself is 0."""
    predicted = np.zeros(grid.targets.shape)
    for other in range(int(folds.max()) + 1):
        if other == fold:
            continue
        member = growth.train(grid.rows((folds != fold) & (folds != other), weights[:, None]), grid.names)
        held = (folds == other).ravel()
        predicted[held] = member.predict(grid.features[held].reshape(-1, grid.features.shape[-1]),
                                         num_threads=growth.threads).reshape(held.sum(), -1)
    return predicted


def train_performance(
    measured: Measured, *, spec: FeatureSpec, target: Target, origin: Origin, growth: BoostingConfig, folds: int,
    tree_count: TreeCount | None = None,
) -> PerformanceModel:
    """Train one member per fold of the groups.

    Args:
        tree_count: as in `cross_fit`.
    """
    grid = Grid.of(spec, measured, target=target)
    assigned = assign_folds(measured.groups, folds, seed=growth.seed)
    members = cross_fit(grid, growth, problem_folds(measured, assigned), tree_count=tree_count)
    trees = sum(member.num_trees() for member in members)
    return PerformanceModel(
        spec=spec, target=target, origin=origin, names=grid.names, members=tuple(members), folds=assigned,
        lineage=(_entry(grid, base=None, new=trees, trees=trees),), threads=growth.threads)


def continue_training(
    base: PerformanceModel, measured: Measured, *, spec: FeatureSpec, growth: BoostingConfig
) -> PerformanceModel:
    """Add trees to every member of a model, trained on other or more problems.

    Known problems stay in their folds, so members are still scored on problems they were not trained on. All trees of
    `growth` are added: there is no early stopping, since the existing trees were trained on every other fold.

    Raises:
        SchemaError: the model was trained on other features or has no folds.
    """
    spec.check(base.spec, origin="the model to start from")
    if not base.folds:
        raise SchemaError("the model to start from has a single member and no folds, like a distilled model: start "
                          "from the full model that experiment=fit_trees saves")
    grid = Grid.of(spec, measured, target=base.target)
    known = assign_folds(measured.groups, len(base.members), seed=growth.seed, known=base.folds)
    fold = problem_folds(measured, known)
    members = [growth.train(grid.rows(fold != index), grid.names, base=member)
               for index, member in enumerate(base.members)]
    trees = sum(member.num_trees() for member in members)
    return PerformanceModel(
        spec=spec, target=base.target, origin=base.origin, names=base.names, members=tuple(members),
        folds=dict(base.folds) | known, threads=growth.threads,
        lineage=(*base.lineage, _entry(grid, base=digest(base), new=trees - base.trees, trees=trees)))


def problem_folds(measured: Measured, folds: Mapping[str, int]) -> np.ndarray:
    """Return the fold of each problem, (problems, 1)."""
    return np.array([[folds[group]] for group in measured.groups])


def _entry(grid: Grid, *, base: str | None, new: int, trees: int) -> dict[str, Any]:
    return {"base": base, "new_trees": new, "trees": trees, "rows": int(grid.ran.sum()),
            "problems": int(grid.ran.any(axis=1).sum()), "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def distil(
    model: PerformanceModel, problems: Mapping[str, np.ndarray], configs: Sequence[Config], *, growth: BoostingConfig,
    focus: float, share: float,
) -> PerformanceModel:
    """Train a small single model on the predictions of a large one, which need no measurements and have no noise.

    Args:
        problems: inputs of problems, which need not be measured, (problems,) each.
        growth: settings of the small model, which has all trees.
        focus: exponent; the weight of a row is (predicted rate / rate of the problem's best configuration)^focus.
        share: share of the rows of each problem to draw; the best tenth is always included.
    """
    candidates = model.over(configs)
    rng = np.random.default_rng(growth.seed)
    features, targets, weights = [], [], []
    total = len(next(iter(problems.values())))
    for start in range(0, total, CHUNK):
        part = {name: column[start : start + CHUNK] for name, column in problems.items()}
        learned = candidates.learned(part)
        behind = _behind(model, learned)
        drawn = (rng.random(learned.shape) < share) | (behind <= np.quantile(behind, 0.1, axis=1, keepdims=True))
        features.append(candidates.features(part)[drawn])
        targets.append(learned[drawn])
        weights.append(np.exp(-focus * behind[drawn]))
    rows = Rows(np.concatenate(features), np.concatenate(targets), np.concatenate(weights))
    small = growth.train(rows, model.names)
    entry = {"distilled_from": digest(model), "trees": small.num_trees(), "rows": len(rows), "problems": total,
             "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return replace(model, members=(small,), folds={}, lineage=(*model.lineage, entry))


def _behind(model: PerformanceModel, learned: np.ndarray) -> np.ndarray:
    """Return the logarithm of each problem's best predicted rate over that of every configuration."""
    restored = np.maximum(model.target.restore(learned), np.finfo(np.float64).tiny)
    rates = -model.target.sign * np.log(restored)
    return rates.max(axis=1, keepdims=True) - rates
