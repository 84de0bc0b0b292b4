"""What is lost where only the kernels of a portfolio are measured."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.ratio_bounds import ratio_bounds

__all__ = ["in_stored_order", "portfolio_metrics", "portfolio_seconds", "portfolio_table"]

CASE = ["op", "matrix", "width"]
PARTS = 2  # of the matrices: those of one are judged by what was chosen on the others

Choose = Callable[[pd.DataFrame], Sequence[str]]
"""Rows of one operation -> kernels."""


def portfolio_seconds(per_case: pd.DataFrame, half: int | None = None) -> pd.DataFrame:
    """Take the median seconds of all repetitions, or of the even (0) or odd (1) ones.

    A row for each case, a column for each kernel; one that some widths do not have is left out.

    Args:
        per_case: per_case.parquet of `choose_kernels`.
    """
    taken = per_case["seconds"].map(lambda each: float(np.median(each if half is None else each[half::2])))
    return per_case.assign(taken=taken).pivot(index=CASE, columns="config", values="taken").dropna(axis=1)


def in_stored_order(per_case: pd.DataFrame) -> pd.DataFrame:
    """Keep kernels that take rows as they are stored."""
    return per_case[per_case["config"].str.startswith("order=natural,")]


def portfolio_metrics(per_case: pd.DataFrame, choose: Choose, *, seed: int) -> dict[str, float]:
    """Judge portfolios on matrices that they were not chosen on.

    Args:
        per_case: as for `portfolio_seconds`, repeated at least twice.
        choose: a portfolio.
        seed: of the bootstrap over cases.

    Returns:
        By operation, with bounds as of `ratio_bounds`: `<op>/regret`, how many times as long the kernel of the
        portfolio that was fastest in the even repetitions takes in the odd ones as the one of all that was fastest in
        the even ones; `<op>/stored/regret`, the same of a portfolio of kernels that take rows as they are stored;
        `<op>/safe`, of the safe kernel; `<op>/kernels`, how many a portfolio has.
    """
    matrices = np.array(sorted(per_case["matrix"].unique()))
    part = dict(zip(matrices, np.arange(matrices.size) % PARTS, strict=True))
    found: dict[str, float] = {}
    for op, rows in per_case.groupby("op", sort=False):
        regrets: dict[str, list[pd.Series]] = {f"{op}/regret": [], f"{op}/stored/regret": [], f"{op}/safe": []}
        for number in range(PARTS):
            judged = rows["matrix"].map(part) == number
            others = rows[~judged]
            picked, truth = (portfolio_seconds(rows[judged], half) for half in (0, 1))
            best = _at(truth, picked.idxmin(axis=1))
            for name, known in (("regret", others), ("stored/regret", in_stored_order(others))):
                regrets[f"{op}/{name}"].append(_at(truth, picked[list(choose(known))].idxmin(axis=1)) / best)
            names = rows[judged & rows["safe"]].set_index(CASE)["config"].loc[truth.index]
            regrets[f"{op}/safe"].append(_at(truth, names) / best)
        for key, ratios in regrets.items():
            found |= ratio_bounds(key, pd.concat(ratios), seed=seed)
        found[f"{op}/kernels"] = float(len(choose(rows)))
    return found


def portfolio_table(metrics: Mapping[str, float]) -> Table:
    """Lay out the ratios with bounds."""
    table = Table(box=None, pad_edge=False, header_style="bold", title="times as long as the fastest kernel",
                  title_justify="left")
    for column in ("", "geometric mean", "95 %", "most"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for key in (key for key in metrics if f"{key}_low" in metrics):
        table.add_row(key, f"{metrics[key]:.3f}", f"{metrics[f'{key}_low']:.3f}-{metrics[f'{key}_high']:.3f}",
                      f"{metrics[f'{key}_max']:.2f}")
    return table


def _at(seconds: pd.DataFrame, names: pd.Series) -> pd.Series:
    """Take the seconds of one kernel in each case."""
    places = seconds.columns.get_indexer(names)
    return pd.Series(seconds.to_numpy()[np.arange(len(seconds)), places], index=seconds.index)
