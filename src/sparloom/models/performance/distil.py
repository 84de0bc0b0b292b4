"""A small model that predicts what a large one predicts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from sparloom.models.performance.growth import Growth, Rows
from sparloom.models.performance.model import PerformanceModel
from sparloom.models.performance.store import digest
from sparloom.space import Config

__all__ = ["distil"]

CHUNK = 256  # problems whose features are held at a time


def distil(
    model: PerformanceModel, problems: Mapping[str, np.ndarray], configs: Sequence[Config], *, growth: Growth,
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
    small = growth.grow(rows, model.names)
    entry = {"distilled_from": digest(model), "trees": small.num_trees(), "rows": len(rows), "problems": total,
             "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return replace(model, members=(small,), folds={}, lineage=(*model.lineage, entry))


def _behind(model: PerformanceModel, learned: np.ndarray) -> np.ndarray:
    """Logarithm of the best predicted rate of each problem over that of a configuration."""
    restored = np.maximum(model.target.restore(learned), np.finfo(np.float64).tiny)
    rates = -model.target.sign * np.log(restored)
    return rates.max(axis=1, keepdims=True) - rates
