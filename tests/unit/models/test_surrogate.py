"""The surrogate: interpolation, gradients of its likelihood, and uncertainty where nothing is known."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from sparloom.models import Points, Priors, Surrogate
from sparloom.models.surrogate import LENGTH, MAX_FITTED, _Likelihood


def points_of(smooth: np.ndarray, linear: np.ndarray | None = None) -> Points:
    return Points(smooth, np.zeros((len(smooth), 0)) if linear is None else linear)


def priors_of(smooth_groups: list[int], linear_groups: list[int]) -> Priors:
    lengths = np.tile(LENGTH, (max(smooth_groups) + 1, 1))
    slopes = np.tile((0.0, 1.0), (max(linear_groups, default=-1) + 1, 1))
    return Priors(lengths, slopes, np.array(smooth_groups), np.array(linear_groups, np.int64))


def test_the_gradient_is_that_of_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    priors = priors_of([0, 1, 1], [0, 0, 1])
    points = points_of(rng.random((12, 3)), rng.standard_normal((12, 3)))
    problem = _Likelihood(priors, points, rng.standard_normal(12))
    at = priors.table[:, 0] + 0.3 * rng.standard_normal(len(priors.table))
    numeric = approx_fprime(at, lambda each: problem(each)[0], 1e-6)
    np.testing.assert_allclose(problem(at)[1], numeric, rtol=1e-3, atol=1e-4)


def test_it_predicts_a_smooth_function_and_its_trend() -> None:
    rng = np.random.default_rng(1)
    smooth, linear = rng.random((80, 2)), rng.standard_normal((80, 1))
    values = np.sin(4 * smooth[:, 0]) + 2 * linear[:, 0]
    known, asked = points_of(smooth[:60], linear[:60]), points_of(smooth[60:], linear[60:])
    surrogate = Surrogate(priors_of([0, 1], [0])).fit(known, values[:60])
    mean, deviation = surrogate.condition(known, values[:60]).at(asked)
    np.testing.assert_allclose(mean, values[60:], atol=0.1)
    assert (deviation > 0).all()
    assert surrogate.mode[0] < surrogate.mode[1]  # the second feature has no effect, so its length is longer


def test_the_joint_answer_agrees_with_the_single_ones() -> None:
    rng = np.random.default_rng(2)
    known, asked = points_of(rng.random((20, 2))), points_of(rng.random((7, 2)))
    posterior = Surrogate(priors_of([0, 1], [])).fit(known, known.smooth.sum(axis=1)).condition(
        known, known.smooth.sum(axis=1))
    mean, deviation = posterior.at(asked)
    together, covariance = posterior.joint(asked)
    np.testing.assert_allclose(together, mean, atol=1e-9)
    np.testing.assert_allclose(np.diag(covariance), deviation**2, rtol=1e-6, atol=1e-9)


def test_a_length_without_evidence_differs_between_draws() -> None:
    """All observations have the second feature 0, so that nothing is known about its length."""
    rng = np.random.default_rng(3)
    smooth = np.stack([rng.random(40), np.zeros(40)], axis=1)
    surrogate = Surrogate(priors_of([0, 1], [])).fit(points_of(smooth), np.sin(6 * smooth[:, 0]))
    lengths = np.array([surrogate.draw(rng)[:2] for _ in range(200)]).std(axis=0)
    assert lengths[1] == pytest.approx(LENGTH[1], rel=0.25)
    assert lengths[0] < 0.5 * lengths[1]


def test_many_observations_are_thinned_out() -> None:
    rng = np.random.default_rng(4)
    smooth = rng.random((4 * MAX_FITTED, 1))
    values = np.sin(6 * smooth[:, 0])
    surrogate = Surrogate(priors_of([0], [])).fit(points_of(smooth), values)
    mean, _ = surrogate.condition(points_of(smooth[:200]), values[:200]).at(points_of(smooth[200:]))
    assert np.abs(mean - values[200:]).max() < 0.05


def test_a_measured_variance_counts_beside_the_noise() -> None:
    """Observations whose own variance is large are doubted, the others are not."""
    smooth = np.linspace(0, 1, 12)[:, None]
    values, variances = np.sin(3 * smooth[:, 0]), np.zeros(12)
    values[5], variances[5] = values[5] + 2, 4.0
    surrogate = Surrogate(priors_of([0], [])).fit(points_of(smooth), values, variances)
    mean, _ = surrogate.condition(points_of(smooth), values, variances).at(points_of(smooth))
    np.testing.assert_allclose(mean, np.sin(3 * smooth[:, 0]), atol=0.1)
    sure, _ = surrogate.condition(points_of(smooth), values).at(points_of(smooth))
    assert abs(sure[5] - mean[5]) > 0.5
