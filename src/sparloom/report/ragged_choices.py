"""What searching the schedules of ragged operators gains over the default ones."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.ragged import case_seconds
from sparloom.report.ragged_names import data_title
from sparloom.report.ratio_bounds import ratio_bounds

__all__ = ["schedule_metrics", "schedule_tables"]

OPERATORS: Mapping[str, str] = {
    "encoder": "Encoder layer", "attention": "Multi-head attention", "softmax": "Softmax along tokens",
    "norm": "Layer norm", "vgemm": "Products of variable size", "trmm": "Triangular product"}


def schedule_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce seconds to how many times as fast chosen schedules are.

    Args:
        frame: per_case.parquet of `bench_ragged_schedules`.
        seed: of the bootstrap over cases.

    Returns:
        By `schedules/<operator>/`: `over_default`, the geometric mean over cases with 95 % bounds `_low` and `_high`
        and the extremes `_min` and `_max`, 1 where the default was chosen; `other_share`, of cases where it was not;
        `search_seconds`, mean over cases of what the choice for batches like it took.
    """
    found: dict[str, float] = {}
    for operator in OPERATORS:
        seconds = case_seconds(frame, operator)
        if not seconds.empty:
            key, gain = f"schedules/{operator}", _gains(seconds)
            found |= ratio_bounds(f"{key}/over_default", gain.fillna(1.0), seed=seed)
            found |= {f"{key}/other_share": float(gain.notna().mean()),
                      f"{key}/search_seconds": float(seconds["search"].mean())}
    return found


def schedule_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Lay out milliseconds, ratios and schedules by case; empty where the default was chosen."""
    for operator, title in OPERATORS.items():
        rows = frame[(frame["part"] == operator) & (frame["method"] == "search")]
        if rows.empty:
            continue
        table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
        for column in ("", " ", "default, ms", "chosen, ms", "times as fast", "search, s", "schedule"):
            table.add_column(column, justify="right" if column.strip() and column != "schedule" else "left")
        seconds = case_seconds(frame, operator)
        gains = _gains(seconds)
        for _, row in rows.iterrows():
            case = (row["data"], row["size"], row["number"])
            default, gain = seconds.loc[case, "default"], gains[case]
            chosen = ("", "") if np.isnan(gain) else (f"{1e3 * default / gain:.2f}", f"{gain:.2f}")
            table.add_row(data_title(row["data"]), str(row["size"]), f"{1e3 * default:.2f}", *chosen,
                          f"{row['median']:.0f}", row["schedule"])
        yield table


def _gains(seconds: pd.DataFrame) -> pd.Series:
    """How many times as fast what was chosen is, by case; NaN where that is the default."""
    return seconds["default"] / seconds.reindex(columns=["chosen"])["chosen"]
