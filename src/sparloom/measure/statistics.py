"""How far equal runs lie apart."""

from collections.abc import Sequence

import numpy as np

__all__ = ["noise_floor"]


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
