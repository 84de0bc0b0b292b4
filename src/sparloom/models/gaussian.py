"""A Gaussian process on what configurations meet on matrices: a cost model for very few labels."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Kernel, Matern, WhiteKernel

from sparloom.models.cost_model import view_of
from sparloom.models.view import MatrixView
from sparloom.models.walk_features import walk_features
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["GaussianProcess"]

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

    def seeded(self, seed: int) -> "GaussianProcess":
        """Nothing is random."""
        return self

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, views: Mapping[str, MatrixView]) -> "GaussianProcess":
        """Learn from columns matrix, config, seconds and the matrices' views; returns a new model."""
        features, targets, everything = [], [], []
        for name, rows in labels.groupby("matrix", sort=True, observed=True):
            view = views[str(name)]
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

    def score(self, matrix: Pattern | MatrixView, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        if self._space is None:
            raise ValueError("this Gaussian process was not fitted yet: call fit")
        features = walk_features(view_of(matrix), configs, self._space)
        return self._regression.predict((features - self._mean) / self._scale)

    def _kernel(self, features: int) -> Kernel:
        reach = np.sqrt(features)  # typical distance of two points that are scaled to unit variance
        smooth = Matern(length_scale=reach, length_scale_bounds=(0.2 * reach, 20 * reach), nu=self.smoothness)
        linear = DotProduct(sigma_0=1.0, sigma_0_bounds="fixed")
        return (ConstantKernel(1.0, (1e-2, 1e2)) * smooth + ConstantKernel(0.3, (1e-3, 1e2)) * linear
                + WhiteKernel(0.01, (1e-4, 0.3)))
