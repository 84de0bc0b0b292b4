"""What trees predict of a measurement, and on which scale.

Folds by group, which stay what they are when problems are added.

How one LightGBM model is grown, from nothing or on top of another.

Features and targets of every configuration on every problem, from which rows for training are taken.

One model per fold: each is scored on the fold that it has not seen, and all of them together are the model.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import lightgbm
import numpy as np
from jaxtyping import Bool, Float

from sparloom.measure import checked_threads
from sparloom.models.performance.features import FeatureSpec
from sparloom.space import Config

__all__ = [
    "BoostingConfig", "Grid", "Measured", "Rows", "Target", "assign_folds", "cross_fit", "out_of_fold", "predict",
    "train_per_fold",
]

Quantity = Literal["throughput", "bandwidth", "latency"]
Scale = Literal["raw", "log", "log1p"]

FORWARD = {"raw": np.asarray, "log": np.log, "log1p": np.log1p}
INVERSE = {"raw": np.asarray, "log": np.exp, "log1p": np.expm1}
UNITS = {"throughput": "GFLOP/s", "bandwidth": "GB/s", "latency": "us"}
GIGA, MICRO = 1e9, 1e-6


@dataclass(frozen=True)
class Target:
    """A quantity in its unit (GFLOP/s, GB/s of compulsory traffic, microseconds) on a scale.

    Args:
        quantity: throughput, bandwidth or latency.
        scale: raw, log or log1p; log1p depends on the unit, log does not.

    Raises:
        ValueError: an unknown quantity or scale.
    """

    quantity: Quantity
    scale: Scale

    def __post_init__(self) -> None:
        for name, given, known in (("quantity", self.quantity, UNITS), ("scale", self.scale, FORWARD)):
            if given not in known:
                raise ValueError(f"{name} {given!r} of a target is not one of {', '.join(known)}")

    @property
    def unit(self) -> str:
        """Unit of the quantity."""
        return UNITS[self.quantity]

    @property
    def sign(self) -> int:
        """-1 where more is faster: sign times a prediction is low for fast."""
        return 1 if self.quantity == "latency" else -1

    def of(self, seconds: np.ndarray, flops: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """What trees learn, from measured seconds; NaN stays NaN."""
        return FORWARD[self.scale](self.quantity_of(seconds, flops, traffic))

    def quantity_of(self, seconds: np.ndarray, flops: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """The quantity in its unit."""
        if self.quantity == "latency":
            return seconds / MICRO
        return (flops if self.quantity == "throughput" else traffic) / seconds / GIGA

    def restore(self, learned: np.ndarray) -> np.ndarray:
        """Bring a prediction back into the unit."""
        return INVERSE[self.scale](learned)


def assign_folds(
    groups: Sequence[str], count: int, *, seed: int, known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Give every group one fold, so that folds hold about equally many problems.

    Args:
        groups: group of each problem; a group with more problems counts more.
        count: folds.
        known: fold by group, from an earlier assignment; it is kept, so that what a model of a fold has never seen it
            does not see when it is grown further either.

    Returns:
        Fold by group; groups go in the order of a hash, each to the fold with the fewest problems.

    Raises:
        ValueError: fewer groups than folds.
    """
    sizes = Counter(groups)
    if count < 2 or len(sizes) < count:
        raise ValueError(f"{count} folds of {len(sizes)} groups: there must be at least 2 folds, and a group for each")
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
    """What is learned from.

    Args:
        features, targets: one row per configuration of a problem.
        weights: of the rows; None: all equal.
    """

    features: Float[np.ndarray, "rows features"]
    targets: Float[np.ndarray, " rows"]
    weights: Float[np.ndarray, " rows"] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def dataset(self, names: tuple[str, ...], reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
        """Hand them to LightGBM."""
        return lightgbm.Dataset(self.features, self.targets, weight=self.weights, feature_name=list(names),
                                reference=reference)


@dataclass(frozen=True)
class BoostingConfig:
    """Settings of gradient boosting.

    Args:
        trees: at most so many.
        patience: stop when so many trees did not help on validation rows.
        leaves, depth, rows_per_leaf: of every tree; depth -1: any.
        learning_rate, lasso, ridge: shrink what a tree says.
        row_share, column_share: drawn for every tree.
        bins: of a feature's values.
        threads: of LightGBM.
        seed: of all draws.
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

    def __post_init__(self) -> None:
        checked_threads(self.threads)

    def with_trees(self, trees: int) -> "BoostingConfig":
        """The same with another number of trees."""
        return replace(self, trees=trees)

    def train(
        self, rows: Rows, names: tuple[str, ...], *, base: lightgbm.Booster | None = None, quantile: float | None = None
    ) -> lightgbm.Booster:
        """Grow all trees.

        Args:
            names: of the features.
            base: its trees come first.
            quantile: of the target, that is predicted in place of its mean.
        """
        return lightgbm.train(self._parameters(quantile), rows.dataset(names), self.trees, init_model=base)

    def best_tree_count(
        self, rows: Rows, held: Rows, names: tuple[str, ...], *, quantile: float | None = None
    ) -> int:
        """Number of trees with the least error on rows that are not learned from."""
        data = rows.dataset(names)
        stop = lightgbm.early_stopping(self.patience, verbose=False)
        model = lightgbm.train(self._parameters(quantile), data, self.trees, valid_sets=[held.dataset(names, data)],
                               callbacks=[stop])
        return max(1, model.best_iteration)

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
    """Seconds of configurations on problems, with what is known of the problems.

    Args:
        problems: what a specification wants to be given, (problems,) each.
        groups: of each problem; a model is never scored on a group that it has learned from.
        configs: candidates.
        seconds: NaN where a configuration did not run.
    """

    problems: Mapping[str, np.ndarray]
    groups: tuple[str, ...]
    configs: tuple[Config, ...]
    seconds: Float[np.ndarray, "problems configs"]

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, kept: np.ndarray) -> "Measured":
        """Keep some problems, given by a mask or by places."""
        places = np.arange(len(self))[kept]
        columns = {name: column[places] for name, column in self.problems.items()}
        return replace(self, problems=columns, groups=tuple(self.groups[place] for place in places),
                       seconds=self.seconds[places])


@dataclass(frozen=True)
class Grid:
    """What trees learn from, problem by problem.

    Args:
        names: of the features.
        features: what they read.
        targets: what they learn; NaN where a configuration did not run.
    """

    names: tuple[str, ...]
    features: Float[np.ndarray, "problems configs features"]
    targets: Float[np.ndarray, "problems configs"]

    @classmethod
    def of(cls, spec: FeatureSpec, measured: Measured, *, target: Target, hardware: bool = False) -> "Grid":
        """Evaluate the features and turn seconds into targets.

        Args:
            hardware: whether the features of the hardware are read: they vary.
        """
        given = {name: np.asarray(column, np.float64)[:, None] for name, column in measured.problems.items()}
        names = spec.names(hardware=hardware)
        features = spec.matrix(given, spec.kernel(measured.configs), names=names)
        flops, traffic = spec.work(given)
        return cls(names, np.broadcast_to(features, (*measured.seconds.shape, len(names))),
                   target.of(measured.seconds, flops, traffic))

    @property
    def ran(self) -> Bool[np.ndarray, "problems configs"]:
        """Where there is something to learn."""
        return np.isfinite(self.targets)

    def rows(self, kept: np.ndarray, weights: np.ndarray | None = None) -> Rows:
        """Take the rows that ran, where `kept`; both arguments broadcast to (problems, configs)."""
        chosen = np.broadcast_to(kept, self.targets.shape) & self.ran
        given = None if weights is None else np.broadcast_to(weights, self.targets.shape)[chosen]
        return Rows(self.features[chosen], self.targets[chosen], given)

    def only(self, names: Sequence[str]) -> "Grid":
        """Read some features only."""
        places = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), features=self.features[..., places])

    def take(self, kept: np.ndarray) -> "Grid":
        """Keep some problems, given by a mask or by places."""
        return replace(self, features=self.features[kept], targets=self.targets[kept])


def cross_fit(
    grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, weights: np.ndarray | None = None,
    quantile: float | None = None,
) -> list[lightgbm.Booster]:
    """Grow one model per fold, on all other folds.

    How many trees it has is found without the fold it is scored on: a first model learns from all folds but that one
    and the next one, and stops by its error on the next one; then the model grows so many trees on both.

    Args:
        folds: integers from 0 that broadcast to (problems, configs).
        weights: of rows, that broadcast as well.
        quantile: to predict in place of the mean.

    Raises:
        ValueError: fewer than three folds: one is scored, one stops the growth, the others are learned from.
    """
    count = int(np.max(folds)) + 1
    if count < 3:
        raise ValueError(f"{count} folds leave nothing to learn from, as one is scored and one ends the growth: "
                         "take at least 3")
    members = []
    for fold in range(count):
        following = (fold + 1) % count
        trees = growth.best_tree_count(
            grid.rows((folds != fold) & (folds != following), weights), grid.rows(folds == following), grid.names,
            quantile=quantile)
        members.append(growth.with_trees(trees).train(grid.rows(folds != fold, weights), grid.names, quantile=quantile))
    return members


def train_per_fold(
    grid: Grid, growth: BoostingConfig, folds: np.ndarray, *, weights: np.ndarray | None = None,
    kept: np.ndarray | bool = True,
) -> list[lightgbm.Booster]:
    """Grow all trees of one model per fold, on all other folds, as far as rows are `kept`.

    Args:
        folds, weights, kept: broadcast to (problems, configs).
    """
    return [growth.train(grid.rows((folds != fold) & kept, weights), grid.names)
            for fold in range(int(np.max(folds)) + 1)]


def out_of_fold(
    grid: Grid, members: Sequence[lightgbm.Booster], folds: np.ndarray, *, threads: int
) -> Float[np.ndarray, "problems configs"]:
    """Predict every fold by the model that has not seen it, on the scale of the target; NaN nowhere."""
    folds = np.broadcast_to(folds, grid.targets.shape)
    found = np.full(grid.targets.shape, np.nan)
    for fold, member in enumerate(members):
        asked = folds == fold
        if asked.any():
            found[asked] = member.predict(grid.features[asked], num_threads=threads)
    return found


def predict(
    members: Sequence[lightgbm.Booster], features: Float[np.ndarray, "*shape features"], *, threads: int
) -> Float[np.ndarray, "*shape"]:
    """Average the predictions of several models."""
    flat = features.reshape(-1, features.shape[-1])
    total = np.sum([member.predict(flat, num_threads=threads) for member in members], axis=0)
    return (total / len(members)).reshape(features.shape[:-1])
