"""Robust statistics of raw repetitions, made when reading, never stored in their place."""

from collections.abc import Sequence

import numpy as np

__all__ = ["noise_floor", "round_minima", "settle"]


def round_minima(rounds: Sequence[Sequence[float]]) -> np.ndarray:
    """Take the least repetition of each round: what disturbs a run only ever adds time."""
    if not rounds or not all(len(repetitions) for repetitions in rounds):
        raise ValueError("every round needs at least one repetition: drop failed rounds first")
    return np.array([min(repetitions) for repetitions in rounds], dtype=np.float64)


def settle(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Reduce the repetitions of one configuration to one number and its uncertainty.

    Returns:
        Median over rounds of the least repetition, in seconds, and the relative spread of the rounds
        (max - min) / median, 0 for a single round.
    """
    minima = round_minima(rounds)
    median = float(np.median(minima))
    return median, float(np.ptp(minima) / median)


def noise_floor(repeats: Sequence[Sequence[float]]) -> float:
    """Relative noise of A/A runs: the same configuration measured several times as if it were different ones.

    Args:
        repeats: for each matrix (or round), the seconds of the repeated baseline.

    Returns:
        90th percentile over all pairs of |a - b| / min(a, b); pairs of distinct configurations closer than this
        carry no order.
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
