"""Cost models without deep learning: gradient-boosted trees, and a Gaussian process for very few labels.

`walk_features` and `pattern_features` describe a configuration on a matrix for them.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import lightgbm
import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.linalg import cho_solve
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Kernel, Matern, WhiteKernel

from sparloom.data import label_seconds
from sparloom.measure import checked_threads
from sparloom.models.cost_model import CostModel, Estimator, MatrixFeatures, as_features
from sparloom.space import EXTENT_SCALE, MAX_LISTED, ORDER_WIDTH, Config, ConfigSpace
from sparloom.sparse import STATISTICS, WALK_STATISTICS, WALKS, Pattern, select_walks, signed_logarithm

ELEMENT_BYTES = 4  # of a dense element
MIN_RATIO = 1e-3  # added to ratios before the logarithm
GRADES = 32  # relevance levels of the ranking objective
EPSILON = 1e-6
STANDARD_ERRORS = 3.0  # that an explained share is lowered by
RATIOS = tuple(name for name in WALK_STATISTICS if name.startswith(("private_", "shared_")))
GENERAL = ("rows", "cols", "nnz", "row_mean", "row_cv", "col_cv", "bandwidth_mean", "runs")
"""Features of the matrix, equal for all configurations."""
SPECIFIC = (
    "row_panel", "column_panel", "slice", "phased", "reordered", "row_panels", "column_panels", "panel_nonzeros",
    "panels_per_lane", "tile_cv", "tile_columns", "tile_rows", "tile_nonzeros", "wave_columns", "imbalance",
    "phase_imbalance", "set", "phase_set", "tile_set", "column_set", "waits", *RATIOS, "own",
)  # fmt: skip
"""Features of a configuration on a matrix; "own" stands for all hardware-specific parameters."""


def walk_features(
    matrix: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, "configs features"]:
    """Describe how configurations walk over a matrix.

    The only property of the target is its number of lanes: working sets are in bytes, not in shares of a cache.

    Returns:
        Columns named by SPECIFIC, logarithms to base 2 except for flags and hardware-specific codes: tile sizes;
        numbers of row and column panels, nonzeros of a row panel, row panels per lane; statistics of tiles (see
        `tile_statistics`): variation of nonzeros, distinct columns and rows per nonzero, nonzeros; imbalance of lanes
        (with waiting if the walk is phased) and the part due to waiting; bytes of dense rows in use at a time, in a
        phase, in a tile, in total; waits per nonzero; miss ratios. Then columns named by GENERAL, equal in all rows:
        statistics of the matrix as signed logarithms.

    Raises:
        Unsupported: the space has no walks, or a walk outside WALKS.
    """
    bound = space.bind(matrix.shape)
    walks = [bound.walk(config) for config in configs]
    stats = select_walks(matrix.walks, walks)
    reordered, row_panel, column_panel, phased, dense = np.array(walks, np.float64).reshape(-1, 5).T
    own = np.array([bound.heterogeneous(config) for config in configs], np.float64)
    numbers = np.array([matrix.statistics[name] for name in GENERAL])
    columns = _specific(matrix, stats, row_panel, column_panel, phased, dense, op=space.op)
    columns |= {"reordered": reordered, "own": own}
    general = np.broadcast_to(signed_logarithm(numbers), (len(configs), numbers.size))
    return np.column_stack([*(columns[name] for name in SPECIFIC), general])


def _specific(
    matrix: MatrixFeatures, stats: Mapping[str, np.ndarray], row_panel: np.ndarray, column_panel: np.ndarray,
    phased: np.ndarray, dense: np.ndarray, *, op: str,
) -> dict[str, np.ndarray]:
    rows, cols, nnz = max(1, matrix.shape[0]), max(1, matrix.shape[1]), max(1, matrix.nnz)
    whole = (column_panel == 0) | (column_panel >= cols)
    height, breadth = np.minimum(row_panel, rows), np.where(whole, cols, column_panel)
    waits = (phased == 1) & ~whole
    dealt = "tile" if op == "sddmm" else "panel"
    free, stepped = stats[f"{dealt}_imbalance"], stats[f"{dealt}_phase_imbalance"]
    size = dense * ELEMENT_BYTES
    found = {
        "row_panel": height, "column_panel": breadth, "slice": dense, "row_panels": rows / height,
        "column_panels": cols / breadth, "panel_nonzeros": nnz * height / rows,
        "panels_per_lane": np.maximum(rows / height / WALKS.lanes, 1 / WALKS.lanes), "tile_cv": 1 + stats["tile_cv"],
        "tile_columns": np.maximum(stats["tile_columns"], 1 / nnz),
        "tile_rows": np.maximum(stats["tile_rows"], 1 / nnz),
        "tile_nonzeros": nnz / np.maximum(1, stats["tiles"]),
        "wave_columns": np.maximum(stats["wave_columns"], 1 / nnz),
        "imbalance": np.where(waits, stepped, free), "phase_imbalance": stepped / free,
        "set": 1 + np.where(waits, stats["wave_tile_set"], stats["wave_set"]) * size,
        "phase_set": 1 + np.where(waits, stats["phase_set"], cols) * size, "tile_set": 1 + stats["tile_set"] * size,
        "column_set": cols * size, "waits": 1 + np.where(waits, stats["phases"], 0) / nnz * 1e4,
        **{name: stats[name] + MIN_RATIO for name in RATIOS},
    }
    return {name: np.log2(values) for name, values in found.items()} | {"phased": waits.astype(float)}


class Trees:
    """Average several LightGBM models, each trained on another sample of the same rows.

    With an estimate of seconds, regressions fit its error, and all models read it as a feature.

    Args:
        features: "pattern" reads values and extents of the configuration and statistics of the pattern, "walk" reads
            `walk_features`, or the same as "pattern" where a space describes no walks.
        objective: regression of log seconds relative to the matrix's mean ("log") or per nonzero ("level"), or ranking
            within each matrix ("rank"). With an estimate, regressions are of log seconds over it.
        rounds: number of trees per model.
        row_share, column_share: share of rows and columns drawn for every tree.
        threads: number of LightGBM's threads.
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
        for name, value, known in (("features", features, FEATURES), ("objective", objective, OBJECTIVES)):
            if value not in known:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(known)}")
        self.features = features
        self.objective, self.bags, self.rounds, self.seed = objective, bags, rounds, seed
        self.parameters: dict[str, Any] = {
            "learning_rate": learning_rate, "num_leaves": leaves, "min_data_in_leaf": rows_per_leaf,
            "lambda_l2": ridge, "bagging_fraction": row_share, "bagging_freq": 1, "feature_fraction": column_share,
            "num_threads": checked_threads(threads), "deterministic": True, "force_row_wise": True, "verbosity": -1,
        }
        self._prior: CostModel | None = None
        self._estimator: Estimator | None = None
        self._space: ConfigSpace | None = None
        self._models: list[lightgbm.Booster] = []

    def with_seed(self, seed: int) -> "Trees":
        model = copy.copy(self)
        model.seed = seed
        return model

    def with_prior(self, prior: CostModel) -> "Trees":
        """Return a copy that reads the score of a model trained on other data as an additional feature."""
        model = copy.copy(self)
        model._prior = prior
        return model

    def with_estimate(self, estimator: Estimator) -> "Trees":
        model = copy.copy(self)
        model._estimator = estimator
        return model

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]) -> "Trees":
        """Fit a new model to labels with the columns matrix, config and seconds."""
        features, targets, groups = [], [], []
        for matrix, configs, logs in _by_matrix(labels, space, matrices):
            features.append(self._describe(matrix, configs, space))
            targets.append(OBJECTIVES[self.objective](logs, _expected(self._estimator, matrix, configs)))
            groups.append(len(configs))
        fitted = copy.copy(self)
        fitted._space = space
        fitted._models = [self._train(np.concatenate(features), np.concatenate(targets), groups, bag)
                          for bag in range(self.bags)]
        return fitted

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        if self._space is None:
            raise ValueError("these trees are not fitted: call fit")
        matrix = as_features(matrix)
        features = self._describe(matrix, configs, self._space)
        scores = np.mean([model.predict(features, num_threads=self.parameters["num_threads"])
                          for model in self._models], axis=0)
        if self.objective == "rank":
            return -scores
        return scores if self._estimator is None else scores + _expected(self._estimator, matrix, configs)

    def _describe(self, matrix: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace) -> np.ndarray:
        features = FEATURES[self.features](matrix, configs, space)
        if self._estimator is not None:
            features = np.column_stack([features, _estimate_feature(self._estimator, matrix, configs)])
        if self._prior is None:
            return features
        return np.column_stack([features, _prior_scores(self._prior, matrix, configs, space)])

    def _train(self, features: np.ndarray, targets: np.ndarray, groups: list[int], bag: int) -> lightgbm.Booster:
        ranking = self.objective == "rank"
        data = lightgbm.Dataset(features, targets, group=groups if ranking else None, free_raw_data=True)
        objective = {"objective": "lambdarank", "label_gain": list(range(GRADES))} if ranking else {"objective": "l2"}
        return lightgbm.train(self.parameters | objective | {"seed": self.seed * 1009 + bag}, data, self.rounds)


def _by_matrix(
    labels: pd.DataFrame, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]
) -> Iterator[tuple[MatrixFeatures, list[Config], np.ndarray]]:
    """Yield each matrix with its labelled configurations and the logarithms of their seconds.

    Raises:
        ValueError: seconds are not positive and finite.
    """
    labels = labels.assign(seconds=label_seconds(labels))
    for name, rows in labels.groupby("matrix", sort=True, observed=True):
        configs = [Config.parse(space.name, key) for key in rows["config"]]
        yield matrices[str(name)], configs, np.log(rows["seconds"].to_numpy())


def pattern_features(
    matrix: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, "configs features"]:
    """Describe configurations on a matrix: values, extents, tiles, flags, then statistics of the matrix."""
    bound = space.bind(matrix.shape)
    shared, codes = bound.vectors(configs)
    indices = [{value: index for index, value in enumerate(parameter.values)} for parameter in space.parameters]
    values = np.array([[index[value] for index, (_, value) in zip(indices, config.values, strict=True)]
                       for config in configs], np.float64).reshape(len(configs), len(indices))
    extents = shared[:, ORDER_WIDTH:]
    extents = np.log2(extents) if getattr(space, "numbers", "log2") == "raw" else extents * EXTENT_SCALE
    sizes = np.log2(np.maximum(1, [*matrix.shape, matrix.nnz]))
    tiles = np.maximum(0, sizes[:2] - extents[:, :2])
    derived = np.column_stack([extents, tiles, sizes[2] - tiles[:, 0], sizes[2] - tiles.sum(axis=1)])
    numbers = signed_logarithm(np.array([matrix.statistics[name] for name in STATISTICS]))
    return np.concatenate([values, derived, codes, np.broadcast_to(numbers, (len(configs), numbers.size))], axis=1)


def _prior_scores(
    prior: CostModel, matrix: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, " configs"]:
    """Scores as standard deviations from the mean over the whole space, comparable across matrices."""
    whole = list(space)
    scores = prior.score(matrix, whole)
    scaled = dict(zip(whole, (scores - scores.mean()) / max(scores.std(), np.finfo(np.float32).tiny), strict=True))
    return np.array([scaled[config] for config in configs])


def _expected(estimator: Estimator | None, matrix: MatrixFeatures, configs: Sequence[Config]) -> np.ndarray:
    """Return log seconds as estimated, or the logarithm of the nonzeros if there is no estimate."""
    return np.log(np.full(len(configs), max(1, matrix.nnz)) if estimator is None else estimator(matrix, configs))


def _estimate_feature(estimator: Estimator, matrix: MatrixFeatures, configs: Sequence[Config]) -> np.ndarray:
    """Return log2 of the estimated seconds per nonzero."""
    return np.log2(estimator(matrix, configs) / max(1, matrix.nnz))


def _level(logs: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return logs - expected


def _relative(logs: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return logs - expected - (logs - expected).mean()


def _grades(logs: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Relevance by rank: GRADES - 1 for the fastest, 0 for the slowest."""
    order = np.argsort(np.argsort(-logs, kind="stable"), kind="stable")
    return order * GRADES // len(logs)


def configuration_features(
    matrix: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, "configs features"]:
    """Describe configurations on a matrix by their walks, or by their values where the space describes no walks."""
    known = getattr(space, "walks", None) is not None
    return (walk_features if known else pattern_features)(matrix, configs, space)


FEATURES = {"pattern": pattern_features, "walk": configuration_features}
OBJECTIVES = {"log": _relative, "level": _level, "rank": _grades}


class GaussianProcess:
    """Model log seconds per nonzero, or over an estimate, as a linear part, a smooth part and noise.

    The hyperparameters of the kernel have maximum likelihood. Reads features standardised over all configurations on
    the labelled matrices, those that `Trees` calls "walk".

    Args:
        smoothness: nu of the Matern kernel; 2.5 means twice differentiable.
    """

    def __init__(self, *, smoothness: float) -> None:
        self.smoothness = smoothness
        self._estimator: Estimator | None = None
        self._space: ConfigSpace | None = None

    def with_estimate(self, estimator: Estimator) -> "GaussianProcess":
        model = copy.copy(self)
        model._estimator = estimator
        return model

    def with_seed(self, seed: int) -> "GaussianProcess":
        """Return the model: nothing is random."""
        return self

    def fit(
        self, labels: pd.DataFrame, *, space: ConfigSpace, matrices: Mapping[str, MatrixFeatures]
    ) -> "GaussianProcess":
        """Fit a new model to labels with the columns matrix, config and seconds."""
        features, targets, everything = [], [], []
        for matrix, configs, logs in _by_matrix(labels, space, matrices):
            features.append(self._describe(matrix, configs, space))
            targets.append(_level(logs, _expected(self._estimator, matrix, configs)))
            everything.append(self._describe(matrix, list(space) if len(space) <= MAX_LISTED else configs, space))
        fitted = copy.copy(self)
        scaled_over, target = np.concatenate(everything), np.concatenate(targets)
        spread = scaled_over.std(axis=0)
        fitted._space, fitted._mean = space, scaled_over.mean(axis=0)
        fitted._scale = np.where(spread > EPSILON, spread, 1.0)  # constant features are not scaled up
        fitted._regression = GaussianProcessRegressor(self._kernel(scaled_over.shape[1]), alpha=EPSILON)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a hyperparameter at its bound is fine
            fitted._regression.fit((np.concatenate(features) - fitted._mean) / fitted._scale, target - target.mean())
        fitted._starts = np.cumsum([len(part) for part in targets])[:-1]
        return fitted

    @property
    def explained_share(self) -> float | None:
        """Share of an estimate's squared error within matrices that labels of the other matrices predict for certain.

        It is three standard errors less than what they predict: few matrices show little. With one label per matrix, it
        is of the error across matrices. None: without an estimate, or not fitted.
        """
        if self._estimator is None or self._space is None:
            return None
        return _explained_share(self._regression, self._regression.y_train_, self._starts)

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        if self._space is None:
            raise ValueError("this Gaussian process is not fitted: call fit")
        matrix = as_features(matrix)
        found = self._regression.predict((self._describe(matrix, configs, self._space) - self._mean) / self._scale)
        return found if self._estimator is None else found + _expected(self._estimator, matrix, configs)

    def _describe(self, matrix: MatrixFeatures, configs: Sequence[Config], space: ConfigSpace) -> np.ndarray:
        features = configuration_features(matrix, configs, space)
        if self._estimator is None:
            return features
        return np.column_stack([features, _estimate_feature(self._estimator, matrix, configs)])

    def _kernel(self, features: int) -> Kernel:
        reach = np.sqrt(features)  # typical distance of two standardised points
        smooth = Matern(length_scale=reach, length_scale_bounds=(0.2 * reach, 20 * reach), nu=self.smoothness)
        linear = DotProduct(sigma_0=1.0, sigma_0_bounds="fixed")
        return (ConstantKernel(1.0, (1e-2, 1e2)) * smooth + ConstantKernel(0.3, (1e-3, 1e2)) * linear
                + WhiteKernel(0.01, (1e-4, 0.3)))


def _explained_share(regression: GaussianProcessRegressor, targets: np.ndarray, starts: np.ndarray) -> float:
    """Return the share of the squares of targets that the other groups predict, less `STANDARD_ERRORS` of it.

    The predictions for a left-out group follow from the inverse covariance of all targets (C. E. Rasmussen and
    C. K. I. Williams, Gaussian Processes for Machine Learning, section 5.4.2, for groups instead of single targets).

    Squares are of targets less the mean of their group, or of targets where all groups have a single one.

    Args:
        starts: index of the first target of every group but the first.

    Returns:
        1: all of it; 0: none; negative: predictions are worse than none.
    """
    inverse = cho_solve((regression.L_, True), np.eye(len(targets)))
    weights, groups = inverse @ targets, len(starts) + 1
    centred = groups < len(targets)
    squares = np.zeros((groups, 2))  # of the errors and of the targets
    for group, rows in enumerate(np.split(np.arange(len(targets)), starts)):
        both = np.stack([np.linalg.solve(inverse[np.ix_(rows, rows)], weights[rows]), targets[rows]])
        squares[group] = ((both - centred * both.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    left, whole = squares.sum(axis=0)
    if not whole > 0:
        return 0.0
    deviations = squares[:, 0] - left / whole * squares[:, 1]
    error = float(np.sqrt(groups / max(groups - 1, 1) * (deviations**2).sum())) / whole
    return 1 - left / whole - STANDARD_ERRORS * error
