"""How one LightGBM model is grown, from nothing or on top of another."""

from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
from jaxtyping import Float

from sparloom.measure import checked_threads

__all__ = ["Growth", "Rows"]


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
class Growth:
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

    def with_trees(self, trees: int) -> "Growth":
        """The same with another number of trees."""
        return replace(self, trees=trees)

    def grow(
        self, rows: Rows, names: tuple[str, ...], *, base: lightgbm.Booster | None = None, quantile: float | None = None
    ) -> lightgbm.Booster:
        """Grow all trees.

        Args:
            names: of the features.
            base: its trees come first.
            quantile: of the target, that is predicted in place of its mean.
        """
        return lightgbm.train(self._parameters(quantile), rows.dataset(names), self.trees, init_model=base)

    def best_size(
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
