"""Metrics of rankings and choices, and the noise of measurements: seconds in, dimensionless numbers out."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

RESAMPLES = 2000  # of the bootstrap
DRAWS_SEED = 1  # of the bootstrap over draws of labels; that over matrices has seed 0 in every report
STORED_SHARES = ((1 - 0.95) / 2, 0.975)  # the first is not 0.025: committed bounds have been made with it
DCE_COST: Mapping[str, float] = {"cpu": 1.0, "cpu_many": 1.0, "spade": 1000.0}
"""Platform -> cost of one sample (COGNATE appendix A.3); those of `cpu_many` are made of samples of the CPU."""


def noise_floor(repeats: Sequence[Sequence[float]]) -> float:
    """Compute the relative noise of A/A runs: one configuration measured several times as if it were several.

    Args:
        repeats: for each matrix (or round), the seconds of the repeated baseline.

    Returns:
        90th percentile over all pairs of |a - b| / min(a, b); distinct configurations that lie closer
        than this are not ordered.
    """
    gaps = []
    for seconds in repeats:
        values = np.asarray(seconds, dtype=np.float64)
        first, second = np.triu_indices(values.size, k=1)
        gaps.append(np.abs(values[first] - values[second]) / np.minimum(values[first], values[second]))
    joined = np.concatenate(gaps) if gaps else np.empty(0)
    if joined.size == 0:
        raise ValueError("no pair of repeated measurements: measure the baseline at least twice per round")
    return float(np.quantile(joined, 0.9))


def geomean(values: Float[np.ndarray, " n"]) -> float:
    """Take the geometric mean of positive values."""
    values = _positive("values", values)
    return float(np.exp(np.log(values).mean()))


def resample(count: int, seed: int | np.random.Generator, *, resamples: int = RESAMPLES) -> np.ndarray:
    """Draw places with replacement, (resamples, count): equal draws for equal seeds, so that ratios are paired."""
    return np.random.default_rng(seed).integers(count, size=(resamples, count))


def mean_over_draws(values: Float[np.ndarray, "draws resamples"]) -> Float[np.ndarray, " resamples"]:
    """Average over draws of labels, which every resample draws anew with replacement.

    With values over resampled matrices this is the bootstrap over draws and matrices. Equally many draws are resampled
    alike, so ratios of methods that learned from the same draws are paired. Few draws understate their variance: n of
    them by a factor of (n - 1) / n, and a single one has none.
    """
    drawn = resample(len(values), DRAWS_SEED, resamples=values.shape[1])
    return np.take_along_axis(values, drawn.T, axis=0).mean(axis=0)


def central(spread: Sequence[float] | np.ndarray, shares: tuple[float, float] = (0.025, 0.975)) -> tuple[float, float]:
    """Return the bounds of the central 95 % of resampled statistics."""
    low, high = np.quantile(spread, shares)
    return float(low), float(high)


def bootstrap_interval(
    values: Float[np.ndarray, " n"], *, seed: int, statistic: Callable[[np.ndarray], float] = geomean,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Compute the 95 % bounds of a statistic over matrices (percentile bootstrap: matrices are resampled).

    Args:
        values: one per matrix.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no values: a bootstrap needs at least one matrix")
    drawn = resample(values.size, seed, resamples=resamples)
    if statistic is geomean:  # all at once, for reports with hundreds of intervals
        return central(np.exp(np.log(_positive("values", values))[drawn].mean(axis=1)), STORED_SHARES)
    return central([statistic(values[draw]) for draw in drawn], STORED_SHARES)


def kendall_tau(first: Float[np.ndarray, " n"], second: Float[np.ndarray, " n"]) -> float:
    """Correlate two rankings of the same items (tau-b: ties count for neither side); NaN if one side is constant."""
    from scipy import stats  # loading takes most of a second, and the other metrics do not need it

    first, second = _same_length(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(stats.kendalltau(first, second).statistic)


def ordered_pair_accuracy(
    scores: Float[np.ndarray, " n"], seconds: Float[np.ndarray, " n"], *, tolerance: float = 0.0
) -> float:
    """Compute the share of pairs whose scores are ordered like their seconds; NaN if no pair is left.

    Args:
        scores: low = fast.
        tolerance: pairs whose seconds differ by at most this share of the smaller are left out; exact ties always.

    Returns:
        In [0, 1]; a pair with equal scores counts one half.
    """
    score_sign, time_sign = _pair_signs(scores, seconds, tolerance)
    if time_sign.size == 0:
        return float("nan")
    return float((1 + (score_sign * time_sign).mean()) / 2)


def ape_time(chosen: Float[np.ndarray, " n"], optimum: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Compute the absolute percentage error of the chosen time, |t - t*| / t* x 100, of each matrix.

    Source: the formula of COGNATE appendix A.2. Nine of the eleven rows of its table 2 cannot come from this formula
    (their speedups force a larger value) but fit `ape_speedup`. Both are reported; table 2 is compared with the latter.
    """
    chosen, optimum = _positive("chosen", chosen), _positive("optimum", optimum)
    return np.abs(chosen / optimum - 1) * 100


def ape_speedup(chosen: Float[np.ndarray, " n"], optimum: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Compute the absolute percentage error of the speedup, |s - s*| / s* x 100, of each matrix.

    The baseline cancels: |s - s*| / s* = |1 - t* / t|. Source: the reading of COGNATE table 2 that agrees with its
    speedups; see `ape_time`.
    """
    chosen, optimum = _positive("chosen", chosen), _positive("optimum", optimum)
    return np.abs(1 - optimum / chosen) * 100


def dce(samples: Mapping[str, int]) -> float:
    """Compute the data collection expense: number of samples times the cost of one, summed over platforms.

    Args:
        samples: platform -> number of samples read in training.

    Source: COGNATE appendix A.3, where 500 SPADE and 10000 CPU samples give 0.51e6.
    """
    return float(sum(count * DCE_COST[platform] for platform, count in samples.items()))


def _pair_signs(scores: np.ndarray, seconds: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    scores, seconds = _same_length(scores, seconds)
    first, second = np.triu_indices(scores.size, k=1)
    sign = _time_sign(seconds[first], seconds[second], tolerance)
    kept = sign != 0
    return np.sign(scores[first] - scores[second])[kept], sign[kept]


def _time_sign(first: np.ndarray, second: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the sign of first - second, 0 where they are closer than the tolerance."""
    gap = first - second
    return np.where(np.abs(gap) > tolerance * np.minimum(first, second), np.sign(gap), 0.0)


def _same_length(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"shapes {first.shape} and {second.shape}: two vectors of one length are needed")
    return first, second


def _positive(name: str, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0 or not (values > 0).all():
        raise ValueError(f"{name} must hold at least one number, all above 0; the smallest is "
                         f"{values.min() if values.size else 'missing'}")
    return values
