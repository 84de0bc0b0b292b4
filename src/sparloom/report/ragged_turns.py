"""Ratios of methods that ran in turn, turn by turn."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

__all__ = ["compared_cases", "turn_metrics", "turn_ratios"]


def compared_cases(frame: pd.DataFrame, part: str) -> Iterator[tuple[str, int, str, pd.DataFrame]]:
    """Go through what was timed in turn: data set, sequences in a batch, operator, and a row for each method.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    rows = frame[frame["part"] == part]
    for (data, size, operator), case in rows.groupby(["data", "size", "operator"], sort=False):
        yield str(data), int(size), str(operator), case.set_index("method")


def turn_ratios(case: pd.DataFrame, fast: str, slow: str) -> np.ndarray:
    """How many times as fast as `slow` the method `fast` was, by turn.

    Args:
        case: with column seconds, by method, of one comparison.
    """
    own, other = (np.asarray(case.loc[method, "seconds"], dtype=np.float64) for method in (fast, slow))
    turns = min(own.size, other.size)
    return other[:turns] / own[:turns]


def turn_metrics(key: str, ratios: np.ndarray) -> dict[str, float]:
    """Median over turns, with `_p10` and `_p90`."""
    shares = {"": 0.5, "_p10": 0.1, "_p90": 0.9}
    return {f"{key}{name}": float(np.quantile(ratios, share)) for name, share in shares.items()}
