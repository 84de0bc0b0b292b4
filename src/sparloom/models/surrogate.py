"""A Gaussian process of few observations, in which the uncertainty of its hyperparameters is part of the answer.

The covariance of two points is a smooth part (Matérn 5/2, one length for each group of features) plus a linear part
(one variance for each group of slopes); observations have noise, to which each may add a variance that was measured
by repeating it; the mean is unknown. Hyperparameters have log-normal
priors. Their posterior is approximated by a normal distribution around its mode (Laplace), from which every question
draws: a length about which the observations say nothing is then short in some answers and long in others, so that a
region without observations is not taken for known.

Source: C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, sections 2.7, 3.4 and 5.4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

ROOT_5 = 5**0.5
STEP = 1e-3  # of the logarithms of hyperparameters, for second derivatives
MAX_ITERATIONS = 40
MAX_DEVIATIONS = 4.0  # of a prior, beyond which no hyperparameter goes
MIN_VARIANCE = 1e-10
MIN_CURVATURE = 0.05  # of the posterior, in units of the widest prior
MAX_FITTED = 256  # observations to which hyperparameters are fitted
LENGTH = (np.log(2.0), 0.7)  # priors: mean and deviation of the logarithm
AMPLITUDE = (0.0, 1.0)
NOISE = (np.log(1e-3), 1.5)


@dataclass(frozen=True)
class Points:
    """Points as a surrogate reads them.

    Args:
        smooth: features in which near points have near values, scaled to a range of about 1.
        linear: features in which values are linear, of a deviation of about 1.
    """

    smooth: Float[np.ndarray, "n d"]
    linear: Float[np.ndarray, "n m"]

    def __len__(self) -> int:
        return len(self.smooth)

    def __getitem__(self, rows: np.ndarray | slice) -> Points:
        return Points(self.smooth[rows], self.linear[rows])

    @staticmethod
    def concatenate(parts: Sequence[Points]) -> Points:
        return Points(np.concatenate([each.smooth for each in parts]), np.concatenate([each.linear for each in parts]))


@dataclass(frozen=True)
class Priors:
    """Groups of features, and the priors of hyperparameters: rows of mean and deviation of the logarithm.

    Args:
        lengths: of each group of smooth features.
        slopes: variances of the slopes of each group of linear features.
        smooth_groups: the group of each smooth feature.
        linear_groups: the group of each linear feature.
    """

    lengths: Float[np.ndarray, "groups 2"]
    slopes: Float[np.ndarray, "groups 2"]
    smooth_groups: np.ndarray
    linear_groups: np.ndarray

    @cached_property
    def table(self) -> Float[np.ndarray, "hyperparameters 2"]:
        """Lengths, amplitude, noise, slopes."""
        return np.concatenate([self.lengths, [AMPLITUDE, NOISE], self.slopes])


class Surrogate:
    """A Gaussian process that is fitted to values of about unit deviation; see the docstring of this module.

    Args:
        mode: logarithms of hyperparameters at which the first fit begins; None: the means of the priors.
    """

    def __init__(self, priors: Priors, mode: np.ndarray | None = None) -> None:
        self.priors = priors
        self.mode = priors.table[:, 0].copy() if mode is None else mode

    def fit(
        self, points: Points, values: Float[np.ndarray, " n"], variances: Float[np.ndarray, " n"] | None = None
    ) -> Surrogate:
        """Find the mode of the hyperparameters' posterior and its curvature; at most `MAX_FITTED` points are read.

        The search begins at the mode before, so fitting again after a few more observations is fast. With few
        observations it begins at the mean of the prior, too.
        """
        rows = lowest_and_spread(values, MAX_FITTED)
        points, values = points[rows], values[rows]
        problem = _Likelihood(self.priors, points, values - values.mean(),
                              0.0 if variances is None else variances[rows])
        mean, deviation = self.priors.table.T
        bounds = np.stack([mean - MAX_DEVIATIONS * deviation, mean + MAX_DEVIATIONS * deviation], axis=1)
        starts = [self.mode] if len(points) > len(mean) * 2 else [self.mode, mean]
        fits = [minimize(problem, start, jac=True, method="L-BFGS-B", bounds=bounds,
                         options={"maxiter": MAX_ITERATIONS}) for start in starts]
        self.mode = min(fits, key=lambda each: each.fun).x
        self._axes = problem.axes(self.mode)
        return self

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw logarithms of hyperparameters from their approximate posterior."""
        mean, deviation = self.priors.table.T
        drawn = self.mode + self._axes @ rng.standard_normal(len(self.mode))
        return np.clip(drawn, mean - MAX_DEVIATIONS * deviation, mean + MAX_DEVIATIONS * deviation)

    def condition(
        self, points: Points, values: Float[np.ndarray, " n"], variances: Float[np.ndarray, " n"] | None = None,
        hyperparameters: np.ndarray | None = None,
    ) -> Posterior:
        """Condition on observations, with drawn hyperparameters or those of the mode."""
        return Posterior(_Kernel(self.priors, self.mode if hyperparameters is None else hyperparameters), points,
                         values, 0.0 if variances is None else variances)


class Posterior:
    """Values at other points, given observations, their own variances (n,) and hyperparameters."""

    def __init__(
        self, kernel: _Kernel, points: Points, values: Float[np.ndarray, " n"], variances: np.ndarray | float
    ) -> None:
        self.kernel, self._points = kernel, points
        noise = (kernel.noise + variances) * np.eye(len(points))
        self._root = cholesky(kernel.between(points, points) + noise, lower=True)
        ones, whitened = solve_triangular(self._root, np.stack([np.ones(len(points)), values], axis=1), lower=True).T
        self.level = float(ones @ whitened / (ones @ ones))
        self._whitened = whitened - self.level * ones

    def at(self, points: Points) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return the mean and the standard deviation at points, noise included: it is mostly what features miss."""
        solved = solve_triangular(self._root, self.kernel.between(self._points, points), lower=True)
        variance = self.kernel.variance(points) + self.kernel.noise - np.einsum("ij,ij->j", solved, solved)
        return self._whitened @ solved + self.level, np.sqrt(np.maximum(variance, MIN_VARIANCE))

    def joint(self, points: Points) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
        """Return the mean and the covariance at points, noise included."""
        solved = solve_triangular(self._root, self.kernel.between(self._points, points), lower=True)
        covariance = self.kernel.between(points, points) - solved.T @ solved
        return self._whitened @ solved + self.level, covariance + self.kernel.noise * np.eye(len(points))


class _Kernel:
    """The covariance function with given hyperparameters."""

    def __init__(self, priors: Priors, logarithms: np.ndarray) -> None:
        count = len(priors.lengths)
        numbers = np.exp(logarithms)
        self._lengths = numbers[:count][priors.smooth_groups]
        self.amplitude, self.noise = numbers[count], numbers[count + 1]
        self._roots = np.sqrt(numbers[count + 2:])[priors.linear_groups]

    def between(self, left: Points, right: Points) -> Float[np.ndarray, "n k"]:
        first, second = left.smooth / self._lengths, right.smooth / self._lengths
        squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
        distances = ROOT_5 * np.sqrt(np.maximum(squares, 0))
        smooth = self.amplitude * (1 + distances + distances**2 / 3) * np.exp(-distances)
        return smooth + (left.linear * self._roots) @ (right.linear * self._roots).T

    def variance(self, points: Points) -> Float[np.ndarray, " n"]:
        return self.amplitude + ((points.linear * self._roots) ** 2).sum(axis=1)


class _Likelihood:
    """The negative logarithm of the posterior of hyperparameters, and its gradient."""

    def __init__(
        self, priors: Priors, points: Points, values: np.ndarray, variances: np.ndarray | float = 0.0
    ) -> None:
        self._priors, self._values, self._variances = priors, values, variances
        self._squares = _sums_by_group(
            (points.smooth.T[:, :, None] - points.smooth.T[:, None, :]) ** 2, priors.smooth_groups,
            len(priors.lengths))
        self._products = _sums_by_group(
            points.linear.T[:, :, None] * points.linear.T[:, None, :], priors.linear_groups, len(priors.slopes))

    def __call__(self, logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        count, size = len(self._priors.lengths), len(self._values)
        lengths, (amplitude, noise), slopes = np.split(np.exp(logarithms), [count, count + 2])
        distances = ROOT_5 * np.sqrt(np.tensordot(lengths**-2, self._squares, 1))
        decay = np.exp(-distances)
        smooth = (1 + distances + distances**2 / 3) * decay
        covariance = amplitude * smooth + np.tensordot(slopes, self._products, 1)
        try:
            root = cholesky(covariance + (noise + self._variances) * np.eye(size), lower=True)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(logarithms)
        inverse = cho_solve((root, True), np.eye(size))
        weights = inverse @ self._values
        outer = 0.5 * (inverse - np.outer(weights, weights))  # derivative by the covariance
        by_length = np.tensordot(self._squares, outer * (5 / 3 * amplitude * (1 + distances) * decay), 2) / lengths**2
        by_slope = np.tensordot(self._products, outer, 2) * slopes
        gradient = np.concatenate([by_length, [(outer * smooth).sum() * amplitude, np.trace(outer) * noise], by_slope])
        mean, deviation = self._priors.table.T
        scores = (logarithms - mean) / deviation
        value = 0.5 * self._values @ weights + np.log(np.diag(root)).sum() + 0.5 * scores @ scores
        return float(value), gradient + scores / deviation

    def axes(self, mode: np.ndarray) -> np.ndarray:
        """Return the matrix that maps standard normal numbers to deviations from the mode."""
        steps = STEP * np.eye(len(mode))
        curvature = np.array([self(mode + step)[1] - self(mode - step)[1] for step in steps]) / (2 * STEP)
        values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
        widest = self._priors.table[:, 1].max()
        return vectors / np.sqrt(np.maximum(values, MIN_CURVATURE / widest**2))


def _sums_by_group(parts: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    sums = np.zeros((count, *parts.shape[1:]))
    np.add.at(sums, groups, parts)
    return sums


def lowest_and_spread(values: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` rows: half of them of the lowest values, the others spread evenly over the rest."""
    if len(values) <= count:
        return np.arange(len(values))
    order = np.argsort(values, kind="stable")
    rest = order[count // 2:]
    return np.concatenate([order[:count // 2], rest[np.linspace(0, len(rest) - 1, count - count // 2).astype(int)]])
