"""Training of boosted trees by folds of problems: each model is scored on the fold that it was not trained on.

A `Measured` table becomes a `Grid` of features and targets (`Target`); `BoostingConfig` trains one LightGBM model on
some of its rows, `cross_fit` one per fold.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import lightgbm
import numpy as np
from jaxtyping import Bool, Float

from sparloom.data import checked_seconds
from sparloom.measure import checked_threads
from sparloom.models.performance.features import FeatureSpec
from sparloom.space import Config

Quantity = Literal["throughput", "bandwidth", "latency"]
Scale = Literal["raw", "log", "log1p"]

FORWARD = {"raw": np.asarray, "log": np.log, "log1p": np.log1p}
INVERSE = {"raw": np.asarray, "log": np.exp, "log1p": np.expm1}
UNITS = {"throughput": "GFLOP/s", "bandwidth": "GB/s", "latency": "us"}
GIGA, MICRO = 1e9, 1e-6
TreeCount = Callable[..., int]
"""Chooses a number of trees; has the parameters of `BoostingConfig.best_tree_count`."""


@dataclass(frozen=True)
class Target:
    """Quantity that trees predict, in GFLOP/s, GB/s of compulsory traffic or microseconds, and its scale.

    Args:
        quantity: throughput, bandwidth or latency.
        scale: raw, log or log1p; only log does not depend on the unit.

    Raises:
        ValueError: an unknown quantity or scale.
    """

    quantity: Quantity
    scale: Scale

    def __post_init__(self) -> None:
        for name, value, known in (("quantity", self.quantity, UNITS), ("scale", self.scale, FORWARD)):
            if value not in known:
                raise ValueError(f"{name} {value!r} of a target is not one of {', '.join(known)}")

    @property
    def unit(self) -> str:
        return UNITS[self.quantity]

    @property
    def sign(self) -> int:
        """-1 if larger is faster, else 1: sign times prediction is low for fast."""
        return 1 if self.quantity == "latency" else -1

    def of(self, seconds: np.ndarray, flops: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """Convert measured seconds to targets; NaN stays NaN."""
        return FORWARD[self.scale](self.quantity_of(seconds, flops, traffic))

    def quantity_of(self, seconds: np.ndarray, flops: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """Convert measured seconds to the quantity in its unit."""
        if self.quantity == "latency":
            return seconds / MICRO
        return (flops if self.quantity == "throughput" else traffic) / seconds / GIGA

    def restore(self, learned: np.ndarray) -> np.ndarray:
        """Convert a prediction from the scale back to the unit."""
        return INVERSE[self.scale](learned)


def assign_folds(
    groups: Sequence[str], count: int, *, seed: int, known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Assign every group to one fold, so that folds hold about equally many problems.

    Args:
        known: fold by group of an earlier assignment, which is kept, so that a model that is trained further still does
            not see its fold.

    Returns:
        Fold by group; groups are taken in the order of a hash, each to the fold with the fewest problems.

    Raises:
        ValueError: fewer groups than folds.
    """
    sizes = Counter(groups)
    if count < 2 or len(sizes) < count:
        raise ValueError(f"{count} folds of {len(sizes)} groups: there must be at least 2 folds and a group for each")
    folds = {group: fold for group, fold in (known or {}).items() if group in sizes}
    loads = Counter({fold: 0 for fold in range(count)})
    for group, fold in folds.items():
        loads[fold] += sizes[group]
    for group in sorted(set(sizes) - set(folds), key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).digest()):
        fold = min(range(count), key=lambda fold: (loads[fold], fold))
        folds[group] = fold
        loads[fold] += sizes[group]
    return folds


@dataclass(frozen=True)
class Rows:
    """Training rows.

    Args:
        features, targets: one row per configuration of a problem.
        weights: weights of the rows; None: all equal.
    """

    features: Float[np.ndarray, "rows features"]
    targets: Float[np.ndarray, " rows"]
    weights: Float[np.ndarray, " rows"] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def dataset(self, names: tuple[str, ...], reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
        """Make a data set of LightGBM."""
        return lightgbm.Dataset(self.features, self.targets, weight=self.weights, feature_name=list(names),
                                reference=reference)


@dataclass(frozen=True)
class BoostingConfig:
    """Settings of gradient boosting.

    Args:
        trees: largest number of trees.
        patience: number of trees without improvement on validation rows after which training stops.
        leaves, depth, rows_per_leaf: limits of every tree; depth -1: none.
        row_share, column_share: share of rows and columns drawn for every tree.
        bins: number of bins of a feature's values.
        threads: number of LightGBM's threads.
        more_trees: trees that a model gets when it is trained further.
    """

    trees: int
    patience: int
    leaves: int
    depth: int
    rows_per_leaf: int
    learning_rate: float
    lasso: float
    ridge: float
    row_share: float
    column_share: float
    bins: int
    threads: int
    seed: int
    more_trees: int = 200

    def __post_init__(self) -> None:
        checked_threads(self.threads)

    def with_trees(self, trees: int) -> "BoostingConfig":
        """Return the settings with another number of trees."""
        return replace(self, trees=trees)

    def train(
        self, rows: Rows, names: tuple[str, ...], *, base: lightgbm.Booster | None = None, quantile: float | None = None
    ) -> lightgbm.Booster:
        """Train a model with all trees.

        Args:
            base: model whose trees come first.
            quantile: quantile of the target to predict instead of the mean.
        """
        return lightgbm.train(self._parameters(quantile), rows.dataset(names), self.trees, init_model=base)

    def train_until_best(
        self, rows: Rows, held: Rows, names: tuple[str, ...], *, base: lightgbm.Booster | None = None,
        quantile: float | None = None,
    ) -> tuple[lightgbm.Booster, list[float]]:
        """Train until the error on held-out rows has not fallen for `patience` trees.

        Args:
            base, quantile: as in `train`.

        Returns:
            The model, which predicts with the trees up to the smallest error, `best_iteration`, and the error after
            each tree.
        """
        data, errors = rows.dataset(names), {}
        callbacks = [lightgbm.early_stopping(self.patience, verbose=False), lightgbm.record_evaluation(errors)]
        model = lightgbm.train(self._parameters(quantile), data, self.trees, valid_sets=[held.dataset(names, data)],
                               init_model=base, callbacks=callbacks)
        (losses,) = errors["valid_0"].values()
        return model, losses

    def best_tree_count(
        self, rows: Rows, held: Rows, names: tuple[str, ...], *, quantile: float | None = None
    ) -> int:
        """Return the number of trees with the smallest error on held-out rows."""
        return max(1, self.train_until_best(rows, held, names, quantile=quantile)[0].best_iteration)

    def _parameters(self, quantile: float | None) -> dict[str, Any]:
        objective = {"objective": "l2"} if quantile is None else {"objective": "quantile", "alpha": quantile}
        return objective | {
            "learning_rate": self.learning_rate, "num_leaves": self.leaves, "max_depth": self.depth,
            "min_data_in_leaf": self.rows_per_leaf, "lambda_l1": self.lasso, "lambda_l2": self.ridge,
            "bagging_fraction": self.row_share, "bagging_freq": 1,  # without a frequency the fraction is ignored
            "feature_fraction": self.column_share, "max_bin": self.bins, "use_missing": False,
            "num_threads": self.threads, "seed": self.seed, "deterministic": True, "force_row_wise": True,
            "verbosity": -1,
        }


@dataclass(frozen=True)
class Measured:
    """Measured seconds of configurations on problems.

    Args:
        problems: inputs of a specification, (problems,) each.
        groups: group of each problem; a model is never scored on a group that it was trained on.
        seconds: NaN where a configuration did not run.

    Raises:
        ValueError: other seconds are not positive and finite.
    """

    problems: Mapping[str, np.ndarray]
    groups: tuple[str, ...]
    configs: tuple[Config, ...]
    seconds: Float[np.ndarray, "problems configs"]

    def __post_init__(self) -> None:
        count = len(self.configs)
        checked_seconds(self.seconds, lambda index: f"problem {index // count}, {self.configs[index % count]}",
                        gaps=True)

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, selected: np.ndarray) -> "Measured":
        """Select problems by a mask or by indices."""
        indices = np.arange(len(self))[selected]
        columns = {name: column[indices] for name, column in self.problems.items()}
        return replace(self, problems=columns, groups=tuple(self.groups[index] for index in indices),
                       seconds=self.seconds[indices])


@dataclass(frozen=True)
class Grid:
    """Features and targets of every configuration on every problem.

    Args:
        targets: NaN where a configuration did not run.
    """

    names: tuple[str, ...]
    features: Float[np.ndarray, "problems configs features"]
    targets: Float[np.ndarray, "problems configs"]

    @classmethod
    def of(cls, spec: FeatureSpec, measured: Measured, *, target: Target) -> "Grid":
        """Evaluate the features and turn seconds into targets."""
        inputs = {name: np.asarray(column, np.float64)[:, None] for name, column in measured.problems.items()}
        features = spec.matrix(inputs, spec.kernel(measured.configs), names=spec.names)
        flops, traffic = spec.work(inputs)
        return cls(spec.names, np.broadcast_to(features, (*measured.seconds.shape, len(spec.names))),
                   target.of(measured.seconds, flops, traffic))

    @property
    def ran(self) -> Bool[np.ndarray, "problems configs"]:
        return np.isfinite(self.targets)

    def rows(self, selected: np.ndarray, weights: np.ndarray | None = None) -> Rows:
        """Select the rows that ran, where `selected`; both arguments broadcast to (problems, configs)."""
        chosen = np.broadcast_to(selected, self.targets.shape) & self.ran
        weights = None if weights is None else np.broadcast_to(weights, self.targets.shape)[chosen]
        return Rows(self.features[chosen], self.targets[chosen], weights)

    def only(self, names: Sequence[str]) -> "Grid":
        columns = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), features=self.features[..., columns])

    def take(self, selected: np.ndarray) -> "Grid":
        """Select problems by a mask or by indices."""
        return replace(self, features=self.features[selected], targets=self.targets[selected])


def cross_fit(
    grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, quantile: float | None = None,
    tree_count: TreeCount | None = None,
) -> list[lightgbm.Booster]:
    """Train one model per fold on all other folds.

    The number of trees is chosen without the fold that is scored: a first model trains on all folds but that one and
    the next one and stops early by its error on the next one; then the model trains that many trees on both.

    Args:
        folds: integers from 0 that broadcast to (problems, configs).
        quantile: quantile to predict instead of the mean.
        tree_count: called in place of `BoostingConfig.best_tree_count`, for example to log the error of every tree.

    Raises:
        ValueError: fewer than three folds: one is scored, one stops training, the others are trained on.
    """
    count = int(np.max(folds)) + 1
    if count < 3:
        raise ValueError(f"{count} folds leave no training data, since one is scored and one stops the training: "
                         "use at least 3")
    members = []
    for fold in range(count):
        following = (fold + 1) % count
        trees = (tree_count or BoostingConfig.best_tree_count)(
            growth, grid.rows((folds != fold) & (folds != following)), grid.rows(folds == following),
            grid.names, quantile=quantile)
        members.append(growth.with_trees(trees).train(grid.rows(folds != fold), grid.names, quantile=quantile))
    return members


def train_per_fold(
    grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, kept: np.ndarray | bool = True,
) -> list[lightgbm.Booster]:
    """Train one model per fold with all trees, on the rows of all other folds that are `kept`.

    Args:
        folds, kept: broadcast to (problems, configs).
    """
    return [growth.train(grid.rows((folds != fold) & kept), grid.names)
            for fold in range(int(np.max(folds)) + 1)]


def out_of_fold(
    grid: Grid, members: Sequence[lightgbm.Booster], folds: np.ndarray, *, threads: int
) -> Float[np.ndarray, "problems configs"]:
    """Predict every fold with the model that was not trained on it, on the scale of the target."""
    folds = np.broadcast_to(folds, grid.targets.shape)
    predicted = np.full(grid.targets.shape, np.nan)
    for fold, member in enumerate(members):
        inside = folds == fold
        if inside.any():
            predicted[inside] = member.predict(grid.features[inside], num_threads=threads)
    return predicted


def predict(
    members: Sequence[lightgbm.Booster], features: Float[np.ndarray, "*shape features"], *, threads: int
) -> Float[np.ndarray, "*shape"]:
    """Average the predictions of several models."""
    flat = features.reshape(-1, features.shape[-1])
    total = np.sum([member.predict(flat, num_threads=threads) for member in members], axis=0)
    return (total / len(members)).reshape(features.shape[:-1])
