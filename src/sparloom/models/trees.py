"""Gradient-boosted trees on numbers that describe a configuration on a matrix: a cost model without deep learning."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightgbm
import numpy as np
import pandas as pd
from jaxtyping import Float

from sparloom.measure import checked_threads
from sparloom.models.cost_model import CostModel, view_of
from sparloom.models.view import MatrixView
from sparloom.models.walk_features import walk_features
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import STATISTICS, Pattern, signed_logarithm

__all__ = ["Trees"]

GRADES = 32  # relevance levels of the ranking objective


class Trees:
    """Average several LightGBM models, each grown on another sample of the same rows.

    Args:
        features: values and extents of the configuration beside statistics of the pattern ("pattern"), or what the
            configuration meets on it ("walk", see `walk_features`).
        objective: regress log seconds relative to the matrix's mean ("log"), or per nonzero ("level"), or rank within
            each matrix ("rank").
        bags: models that are averaged.
        rounds: trees per model.
        learning_rate, leaves, rows_per_leaf, ridge: of each model.
        row_share, column_share: drawn for every tree.
        threads: of LightGBM.
        seed: of all draws.
    """

    def __init__(
        self,
        *,
        features: Literal["pattern", "walk"],
        objective: Literal["log", "level", "rank"],
        bags: int,
        rounds: int,
        learning_rate: float,
        leaves: int,
        rows_per_leaf: int,
        ridge: float,
        row_share: float,
        column_share: float,
        threads: int,
        seed: int,
    ) -> None:
        for name, given, known in (("features", features, FEATURES), ("objective", objective, OBJECTIVES)):
            if given not in known:
                raise ValueError(f"{name}={given!r} is not one of {', '.join(known)}")
        self.features = features
        self.objective, self.bags, self.rounds, self.seed = objective, bags, rounds, seed
        self.parameters: dict[str, Any] = {
            "learning_rate": learning_rate, "num_leaves": leaves, "min_data_in_leaf": rows_per_leaf,
            "lambda_l2": ridge, "bagging_fraction": row_share, "bagging_freq": 1, "feature_fraction": column_share,
            "num_threads": checked_threads(threads), "deterministic": True, "force_row_wise": True, "verbosity": -1,
        }
        self._prior: CostModel | None = None
        self._space: ConfigSpace | None = None
        self._models: list[lightgbm.Booster] = []

    def seeded(self, seed: int) -> "Trees":
        """Fix what is random in growing."""
        made = copy.copy(self)
        made.seed = seed
        return made

    def informed_by(self, prior: CostModel) -> "Trees":
        """Let the score of a model that has learned elsewhere be one more number of every configuration."""
        made = copy.copy(self)
        made._prior = prior
        return made

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, views: Mapping[str, MatrixView]) -> "Trees":
        """Learn from columns matrix, config, seconds and the matrices' statistics; returns a new model."""
        features, targets, groups = [], [], []
        for name, rows in labels.groupby("matrix", sort=True, observed=True):
            configs = [Config.parse(space.name, key) for key in rows["config"]]
            features.append(self._describe(views[str(name)], configs, space))
            logs = np.log(rows["seconds"].to_numpy(np.float64))
            targets.append(OBJECTIVES[self.objective](logs, views[str(name)]))
            groups.append(len(rows))
        fitted = copy.copy(self)
        fitted._space = space
        fitted._models = [self._grow(np.concatenate(features), np.concatenate(targets), groups, bag)
                          for bag in range(self.bags)]
        return fitted

    def score(self, matrix: Pattern | MatrixView, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        if self._space is None:
            raise ValueError("these trees were not grown yet: call fit")
        features = self._describe(view_of(matrix), configs, self._space)
        scores = np.mean([model.predict(features, num_threads=self.parameters["num_threads"])
                          for model in self._models], axis=0)
        return -scores if self.objective == "rank" else scores

    def _describe(self, view: MatrixView, configs: Sequence[Config], space: ConfigSpace) -> np.ndarray:
        features = FEATURES[self.features](view, configs, space)
        if self._prior is None:
            return features
        return np.column_stack([features, _prior_scores(self._prior, view, configs, space)])

    def _grow(self, features: np.ndarray, targets: np.ndarray, groups: list[int], bag: int) -> lightgbm.Booster:
        ranking = self.objective == "rank"
        data = lightgbm.Dataset(features, targets, group=groups if ranking else None, free_raw_data=True)
        objective = {"objective": "lambdarank", "label_gain": list(range(GRADES))} if ranking else {"objective": "l2"}
        return lightgbm.train(self.parameters | objective | {"seed": self.seed * 1009 + bag}, data, self.rounds)


def pattern_features(view: MatrixView, configs: Sequence[Config], space: ConfigSpace) -> Float[np.ndarray, "configs f"]:
    """Describe each configuration on a matrix: values, extents, tiles, flags, then the matrix's statistics."""
    bound = space.bind(view.shape)
    shared, codes = bound.vectors(configs)
    places = [{value: place for place, value in enumerate(parameter.values)} for parameter in space.parameters]
    values = np.array([[place[value] for place, (_, value) in zip(places, config.values, strict=True)]
                       for config in configs], np.float64).reshape(len(configs), len(places))
    extents = shared[:, 49:] * 16
    sizes = np.log2(np.maximum(1, [*view.shape, view.nnz]))
    tiles = np.maximum(0, sizes[:2] - extents[:, :2])
    derived = np.column_stack([extents, tiles, sizes[2] - tiles[:, 0], sizes[2] - tiles.sum(axis=1)])
    numbers = signed_logarithm(np.array([view.statistics[name] for name in STATISTICS]))
    return np.concatenate([values, derived, codes, np.broadcast_to(numbers, (len(configs), numbers.size))], axis=1)


def _prior_scores(
    prior: CostModel, view: MatrixView, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, " configs"]:
    """Scores in standard deviations from their mean over the whole space, which compares across matrices."""
    whole = list(space)
    scores = prior.score(view, whole)
    scaled = dict(zip(whole, (scores - scores.mean()) / max(scores.std(), np.finfo(np.float32).tiny), strict=True))
    return np.array([scaled[config] for config in configs])


def _level(logs: np.ndarray, view: MatrixView) -> np.ndarray:
    return logs - np.log(max(1, view.nnz))


def _relative(logs: np.ndarray, view: MatrixView) -> np.ndarray:
    return logs - logs.mean()


def _grades(logs: np.ndarray, view: MatrixView) -> np.ndarray:
    """Relevance by rank: the fastest GRADES - 1, the slowest 0."""
    order = np.argsort(np.argsort(-logs, kind="stable"), kind="stable")
    return order * GRADES // len(logs)


FEATURES = {"pattern": pattern_features, "walk": walk_features}
OBJECTIVES = {"log": _relative, "level": _level, "rank": _grades}
