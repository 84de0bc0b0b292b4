"""How far final losses of trainings in float32 are from that in float64."""

from collections.abc import Mapping

import pandas as pd
from rich.table import Table

__all__ = ["loss_error_metrics", "loss_error_table"]

REFERENCE = "float64"
TOLERANCE = 1e-3


def loss_error_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce final losses to their distances from float64.

    Args:
        frame: per_matrix.parquet of `check_gcn`: a row for each matrix, width and method, "float64" among these.

    Returns:
        `cases`, and by method `<method>/loss_error_median` and `_max`, the absolute difference from the loss of
        float64, and `<method>/within`, the share of cases where it is at most 1e-3.
    """
    losses = frame.pivot(index=["matrix", "width"], columns="method", values="loss")
    errors = losses.drop(columns=REFERENCE).sub(losses[REFERENCE], axis=0).abs()
    found: dict[str, float] = {"cases": len(errors)}
    for method in errors:
        found |= {f"{method}/loss_error_median": float(errors[method].median()),
                  f"{method}/loss_error_max": float(errors[method].max()),
                  f"{method}/within": float((errors[method] <= TOLERANCE).mean())}
    return found


def loss_error_table(metrics: Mapping[str, float]) -> Table:
    """Lay out one row per method."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title=f"final losses of {metrics['cases']} trainings in float32, distance from float64")
    table.add_column("", no_wrap=True)
    for heading in ("median", "largest", f"within {TOLERANCE:g}"):
        table.add_column(heading, justify="right", no_wrap=True)
    for key in (key for key in metrics if key.endswith("/within")):
        method = key.removesuffix("/within")
        table.add_row(method, f"{metrics[f'{method}/loss_error_median']:.1e}",
                      f"{metrics[f'{method}/loss_error_max']:.1e}", f"{metrics[key]:.0%}")
    return table
