"""What a model reads of a configuration on a pattern: its walk, in logarithms, beside sizes and statistics.

Gradient-boosted trees on numbers that describe a configuration on a matrix: a cost model without deep learning.

A Gaussian process on what configurations meet on matrices: a cost model for very few labels.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightgbm
import numpy as np
import pandas as pd
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Kernel, Matern, WhiteKernel

from sparloom.errors import Unsupported
from sparloom.measure import checked_threads
from sparloom.models.cost_model import CostModel, MatrixFeatures, as_features
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import STATISTICS, WALK_STATISTICS, WALKS, Pattern, signed_logarithm

__all__ = ["GENERAL", "SPECIFIC", "GaussianProcess", "Trees", "walk_features"]

ELEMENT = 4  # bytes of a dense element
LEAST = 1e-3  # of a ratio, before its logarithm is taken
RATIOS = tuple(name for name in WALK_STATISTICS if name.startswith(("private_", "shared_")))
GENERAL = ("rows", "cols", "nnz", "row_mean", "row_cv", "col_cv", "bandwidth_mean", "runs")
"""Of the matrix, whatever the configuration."""
SPECIFIC = (
    "row_panel", "column_panel", "slice", "phased", "reordered", "row_panels", "column_panels", "panel_nonzeros",
    "panels_per_lane", "tile_cv", "tile_columns", "tile_rows", "tile_nonzeros", "wave_columns", "imbalance",
    "phase_imbalance", "set", "phase_set", "tile_set", "column_set", "waits", *RATIOS, "own",
)  # fmt: skip
"""Of the configuration on the matrix; "own" stands for the platform's own parameters, however many."""


def walk_features(
    view: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, "configs features"]:
    """Describe configurations on a matrix.

    Nothing is said of the target but how many lanes it has: sets are in bytes, not in shares of a cache.

    Returns:
        Columns named by SPECIFIC (logarithms to base 2, but for flags and the platform's own codes): tile sizes;
        how many row and column panels the matrix has, nonzeros of a row panel, row panels per lane; statistics of tiles
        (see `tile_statistics`): variation of nonzeros, distinct columns and rows per nonzero, nonzeros; imbalance of
        lanes, with waiting if the walk is phased, and what waiting would add; bytes of dense rows that are in use at a
        time, in a phase, in a tile, in all; how often lanes wait, per nonzero; miss ratios. Then columns named by
        GENERAL, equal in all rows: statistics of the matrix, signed logarithms.

    Raises:
        Unsupported: the space describes no walks, or a walk that is not among WALKS.
    """
    bound = space.bind(view.shape)
    walks = [bound.walk(config) for config in configs]
    missing = [walk for walk in walks if walk not in view.walks]
    if missing:
        raise Unsupported(f"{missing[0]} of space {space.name} is not among the walks that are described of a pattern: "
                          f"{WALKS}; choose model=cognate or model=trees")
    table = np.array([view.walks[walk] for walk in walks], np.float64).reshape(len(walks), len(WALK_STATISTICS))
    met = dict(zip(WALK_STATISTICS, table.T, strict=True))
    reordered, row_panel, column_panel, phased, dense = np.array(walks, np.float64).reshape(-1, 5).T
    own = np.array([bound.heterogeneous(config) for config in configs], np.float64)
    numbers = np.array([view.statistics[name] for name in GENERAL])
    columns = _specific(view, met, row_panel, column_panel, phased, dense, op=space.op)
    columns |= {"reordered": reordered, "own": own}
    general = np.broadcast_to(signed_logarithm(numbers), (len(configs), numbers.size))
    return np.column_stack([*(columns[name] for name in SPECIFIC), general])


def _specific(
    view: MatrixFeatures, met: Mapping[str, np.ndarray], row_panel: np.ndarray, column_panel: np.ndarray,
    phased: np.ndarray, dense: np.ndarray, *, op: str,
) -> dict[str, np.ndarray]:
    rows, cols, nnz = max(1, view.shape[0]), max(1, view.shape[1]), max(1, view.nnz)
    whole = (column_panel == 0) | (column_panel >= cols)
    height, breadth = np.minimum(row_panel, rows), np.where(whole, cols, column_panel)
    waits = (phased == 1) & ~whole
    dealt = "tile" if op == "sddmm" else "panel"
    free, stepped = met[f"{dealt}_imbalance"], met[f"{dealt}_phase_imbalance"]
    size = dense * ELEMENT
    found = {
        "row_panel": height, "column_panel": breadth, "slice": dense, "row_panels": rows / height,
        "column_panels": cols / breadth, "panel_nonzeros": nnz * height / rows,
        "panels_per_lane": np.maximum(rows / height / WALKS.lanes, 1 / WALKS.lanes), "tile_cv": 1 + met["tile_cv"],
        "tile_columns": np.maximum(met["tile_columns"], 1 / nnz), "tile_rows": np.maximum(met["tile_rows"], 1 / nnz),
        "tile_nonzeros": nnz / np.maximum(1, met["tiles"]), "wave_columns": np.maximum(met["wave_columns"], 1 / nnz),
        "imbalance": np.where(waits, stepped, free), "phase_imbalance": stepped / free,
        "set": 1 + np.where(waits, met["wave_tile_set"], met["wave_set"]) * size,
        "phase_set": 1 + np.where(waits, met["phase_set"], cols) * size, "tile_set": 1 + met["tile_set"] * size,
        "column_set": cols * size, "waits": 1 + np.where(waits, met["phases"], 0) / nnz * 1e4,
        **{name: met[name] + LEAST for name in RATIOS},
    }
    return {name: np.log2(values) for name, values in found.items()} | {"phased": waits.astype(float)}


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

    def with_seed(self, seed: int) -> "Trees":
        """Fix what is random in growing."""
        made = copy.copy(self)
        made.seed = seed
        return made

    def with_prior(self, prior: CostModel) -> "Trees":
        """Let the score of a model that has learned elsewhere be one more number of every configuration."""
        made = copy.copy(self)
        made._prior = prior
        return made

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]) -> "Trees":
        """Learn from columns matrix, config, seconds and the matrices' statistics; returns a new model."""
        features, targets, groups = [], [], []
        for name, rows in labels.groupby("matrix", sort=True, observed=True):
            configs = [Config.parse(space.name, key) for key in rows["config"]]
            features.append(self._describe(matrices[str(name)], configs, space))
            logs = np.log(rows["seconds"].to_numpy(np.float64))
            targets.append(OBJECTIVES[self.objective](logs, matrices[str(name)]))
            groups.append(len(rows))
        fitted = copy.copy(self)
        fitted._space = space
        fitted._models = [self._grow(np.concatenate(features), np.concatenate(targets), groups, bag)
                          for bag in range(self.bags)]
        return fitted

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        if self._space is None:
            raise ValueError("these trees were not grown yet: call fit")
        features = self._describe(as_features(matrix), configs, self._space)
        scores = np.mean([model.predict(features, num_threads=self.parameters["num_threads"])
                          for model in self._models], axis=0)
        return -scores if self.objective == "rank" else scores

    def _describe(self, view: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace) -> np.ndarray:
        features = FEATURES[self.features](view, configs, space)
        if self._prior is None:
            return features
        return np.column_stack([features, _prior_scores(self._prior, view, configs, space)])

    def _grow(self, features: np.ndarray, targets: np.ndarray, groups: list[int], bag: int) -> lightgbm.Booster:
        ranking = self.objective == "rank"
        data = lightgbm.Dataset(features, targets, group=groups if ranking else None, free_raw_data=True)
        objective = {"objective": "lambdarank", "label_gain": list(range(GRADES))} if ranking else {"objective": "l2"}
        return lightgbm.train(self.parameters | objective | {"seed": self.seed * 1009 + bag}, data, self.rounds)


def pattern_features(
    view: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, "configs features"]:
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
    prior: CostModel, view: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, " configs"]:
    """Scores in standard deviations from their mean over the whole space, which compares across matrices."""
    whole = list(space)
    scores = prior.score(view, whole)
    scaled = dict(zip(whole, (scores - scores.mean()) / max(scores.std(), np.finfo(np.float32).tiny), strict=True))
    return np.array([scaled[config] for config in configs])


def _level(logs: np.ndarray, view: MatrixFeatures) -> np.ndarray:
    return logs - np.log(max(1, view.nnz))


def _relative(logs: np.ndarray, view: MatrixFeatures) -> np.ndarray:
    return logs - logs.mean()


def _grades(logs: np.ndarray, view: MatrixFeatures) -> np.ndarray:
    """Relevance by rank: the fastest GRADES - 1, the slowest 0."""
    order = np.argsort(np.argsort(-logs, kind="stable"), kind="stable")
    return order * GRADES // len(logs)


FEATURES = {"pattern": pattern_features, "walk": walk_features}
OBJECTIVES = {"log": _relative, "level": _level, "rank": _grades}


LISTED = 4096  # configurations of a space that is listed whole to scale features
TINY = 1e-6


class GaussianProcess:
    """Log seconds per nonzero: a linear part, a smooth part, noise; their sizes are fitted by likelihood.

    Features are `walk_features`, centred and scaled over all configurations on the labelled matrices.

    Args:
        smoothness: of the Matern kernel; 2.5 means twice differentiable.
    """

    def __init__(self, *, smoothness: float) -> None:
        self.smoothness = smoothness
        self._space: ConfigSpace | None = None

    def with_seed(self, seed: int) -> "GaussianProcess":
        """Nothing is random."""
        return self

    def fit(
        self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]
    ) -> "GaussianProcess":
        """Learn from columns matrix, config, seconds and the matrices' views; returns a new model."""
        features, targets, everything = [], [], []
        for name, rows in labels.groupby("matrix", sort=True, observed=True):
            view = matrices[str(name)]
            configs = [Config.parse(space.name, key) for key in rows["config"]]
            features.append(walk_features(view, configs, space))
            targets.append(np.log(rows["seconds"].to_numpy(np.float64)) - np.log(max(1, view.nnz)))
            everything.append(walk_features(view, list(space) if len(space) <= LISTED else configs, space))
        fitted = GaussianProcess(smoothness=self.smoothness)
        seen, target = np.concatenate(everything), np.concatenate(targets)
        fitted._space, fitted._mean, fitted._scale = space, seen.mean(axis=0), seen.std(axis=0) + TINY
        fitted._regression = GaussianProcessRegressor(self._kernel(seen.shape[1]), alpha=TINY)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a size at its bound is an answer, too
            fitted._regression.fit((np.concatenate(features) - fitted._mean) / fitted._scale, target - target.mean())
        return fitted

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        if self._space is None:
            raise ValueError("this Gaussian process was not fitted yet: call fit")
        features = walk_features(as_features(matrix), configs, self._space)
        return self._regression.predict((features - self._mean) / self._scale)

    def _kernel(self, features: int) -> Kernel:
        reach = np.sqrt(features)  # typical distance of two points that are scaled to unit variance
        smooth = Matern(length_scale=reach, length_scale_bounds=(0.2 * reach, 20 * reach), nu=self.smoothness)
        linear = DotProduct(sigma_0=1.0, sigma_0_bounds="fixed")
        return (ConstantKernel(1.0, (1e-2, 1e2)) * smooth + ConstantKernel(0.3, (1e-3, 1e2)) * linear
                + WhiteKernel(0.01, (1e-4, 0.3)))
