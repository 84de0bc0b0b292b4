"""Ratios of seconds over cases to a geometric mean with its bounds."""

import pandas as pd

from sparloom.measure import bootstrap_interval, geomean

__all__ = ["ratio_bounds"]


def ratio_bounds(key: str, ratio: pd.Series, *, seed: int) -> dict[str, float]:
    """Reduce ratios, without those that are NaN.

    Args:
        seed: of the bootstrap over cases.

    Returns:
        Their geometric mean as `key`, its 95 % bounds `_low` and `_high`, the extremes `_min` and `_max`; nothing if
        there are no ratios.
    """
    values = ratio.dropna().to_numpy()
    if not values.size:
        return {}
    low, high = bootstrap_interval(values, seed=seed)
    return {key: geomean(values), f"{key}_low": low, f"{key}_high": high, f"{key}_min": float(values.min()),
            f"{key}_max": float(values.max())}
