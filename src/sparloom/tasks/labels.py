"""Labels of a sample table with the noise that was measured beside them."""

import numpy as np
import pandas as pd

from sparloom.data import SampleTable
from sparloom.measure import noise_floor

__all__ = ["labels_with_noise"]


def labels_with_noise(table: SampleTable, baseline: str) -> pd.DataFrame:
    """Reduce a table to labels; the repeated baseline of each matrix (A/A) bounds which pairs carry an order.

    Args:
        baseline: key of the configuration that is measured several times per round.

    Returns:
        As `SampleTable.labels`.
    """
    return table.labels(noise=_noise(table, baseline))


def _noise(table: SampleTable, baseline: str) -> dict[str, float]:
    """Relative noise by matrix, of matrices whose baseline ran at least twice."""
    frame = table.frame()
    rows = frame[(frame["config"] == baseline) & frame["failure"].isna()]
    found = {}
    for name, seconds in rows.groupby("matrix", observed=True)["seconds"]:
        least = [float(np.min(repetitions)) for repetitions in seconds]
        if len(least) > 1:
            found[str(name)] = noise_floor([least])
    return found
