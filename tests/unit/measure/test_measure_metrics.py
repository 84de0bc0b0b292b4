"""Metrics against numbers worked out by hand and against the paper's table."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from sparloom.measure import (
    ape_speedup,
    ape_time,
    bootstrap_interval,
    dce,
    geomean,
    kendall_tau,
    noise_floor,
    ordered_pair_accuracy,
)
from sparloom.measure.metrics import mean_over_draws, resample


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -2.0], [float("nan")]])
def test_geomean_refuses_nonpositive_values(values):
    with pytest.raises(ValueError, match="at least one number, all above 0"):
        geomean(np.array(values))


def test_bootstrap_covers_the_statistic_and_repeats_by_seed():
    values = np.exp(np.random.default_rng(0).normal(0.3, 0.2, size=150))
    low, high = bootstrap_interval(values, seed=1)
    assert low < geomean(values) < high
    assert high - low < 0.15
    assert bootstrap_interval(values, seed=1) == (low, high)
    assert bootstrap_interval(values, seed=2) != (low, high)
    assert bootstrap_interval(values, seed=1, statistic=lambda drawn: geomean(drawn)) == (low, high)


def test_bounds_over_draws_and_matrices_cover_the_variance_of_both():
    rng = np.random.default_rng(0)
    draws, matrices = rng.normal(0, 0.3, (40, 1)), rng.normal(0, 0.4, 50)
    logs = draws + matrices
    spread = mean_over_draws(logs[:, resample(50, 0)].mean(axis=2))
    assert spread.std() == pytest.approx(np.sqrt(draws.var() / 40 + matrices.var() / 50), rel=0.05)
    alone = logs[:1, resample(50, 0)].mean(axis=2)
    np.testing.assert_array_equal(mean_over_draws(alone), alone[0])


def test_kendall_tau_of_equal_and_opposite_rankings():
    values = np.array([3.0, 1.0, 2.0])
    assert kendall_tau(values, 10 * values) == pytest.approx(1.0)
    assert kendall_tau(values, -values) == pytest.approx(-1.0)
    assert np.isnan(kendall_tau(values, np.ones(3)))


def test_ordered_pair_accuracy_counts_pairs():
    scores, seconds = np.array([1.0, 2.0, 3.0, 3.0]), np.array([1.0, 3.0, 2.0, 4.0])
    right = 0.0
    pairs = list(itertools.combinations(range(4), 2))
    for a, b in pairs:
        agrees = np.sign(scores[a] - scores[b]) * np.sign(seconds[a] - seconds[b])
        right += (1 + agrees) / 2
    assert ordered_pair_accuracy(scores, seconds) == pytest.approx(right / len(pairs))


def test_pairs_within_the_tolerance_are_left_out():
    scores, seconds = np.array([2.0, 1.0, 5.0]), np.array([1.0, 1.04, 2.0])
    assert ordered_pair_accuracy(scores, seconds) == pytest.approx(2 / 3)
    assert ordered_pair_accuracy(scores, seconds, tolerance=0.05) == 1.0
    assert np.isnan(ordered_pair_accuracy(scores[:2], seconds[:2], tolerance=0.05))


def test_the_two_readings_of_ape_differ():
    chosen, optimum = np.array([2.0, 1.0]), np.array([1.0, 1.0])
    np.testing.assert_allclose(ape_time(chosen, optimum), [100, 0])
    np.testing.assert_allclose(ape_speedup(chosen, optimum), [50, 0])


@pytest.mark.parametrize(("cpu", "spade", "published"), [
    (0, 500, 0.50), (0, 10_000, 10.00), (10_000, 500, 0.51), (10_000, 100_000, 100.01), (100_000, 500, 0.60),
    (10_000, 0, 0.01),
])
def test_collection_expense_gives_the_column_of_table_2(cpu, spade, published):
    assert dce({"cpu": cpu, "spade": spade}) / 1e6 == pytest.approx(published, abs=0.0051)


def test_noise_floor_is_the_upper_tail_of_repeated_runs():
    assert noise_floor([[1.0, 1.1]]) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="at least twice per round"):
        noise_floor([[1.0]])


def test_measure_is_imported_without_scipy():
    code = "import sys, sparloom.measure; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
