"""Designs of an accelerator: which are worth their cost, and what tuned programs make of them."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.measure import bootstrap_interval, geomean

__all__ = ["DESIGN_METHODS", "design_gains", "design_metrics", "designs_table", "pareto", "per_design"]

DESIGN_METHODS: Mapping[str, str] = {
    "default": "default program", "transferred": "model of the baseline", "learned": "model of the design",
    "optimum": "best program",
}
"""How programs are chosen -> as tables and figures call it."""
REDUCED = ("design", "method", "cost", "speedup", "low", "high", "front")


def pareto(costs: np.ndarray, speedups: np.ndarray) -> np.ndarray:
    """Flag the designs that no other beats: none is as cheap and as fast, and cheaper or faster."""
    cheaper, faster = costs[None, :] < costs[:, None], speedups[None, :] > speedups[:, None]
    as_good = (costs[None, :] <= costs[:, None]) & (speedups[None, :] >= speedups[:, None])
    return ~(as_good & (cheaper | faster)).any(axis=1)


def per_design(frame: pd.DataFrame, costs: Mapping[str, float]) -> pd.DataFrame:
    """Reduce rows of matrices and seeds to one per design and method.

    Args:
        frame: columns design, method, matrix, seed, speedup (over the baseline with its default program).
        costs: design -> cost, relative to the baseline.

    Returns:
        Columns design, method, cost; speedup, geometric mean over matrices and seeds, with low and high, its 95 %
        bounds over matrices; front: no other design beats it under the same method.
    """
    logs = frame.assign(speedup=np.log(frame["speedup"]))
    means = np.exp(logs.groupby(["method", "design", "matrix"], sort=False)["speedup"].mean())
    rows = []
    for (method, design), values in means.groupby(level=["method", "design"], sort=False):
        low, high = bootstrap_interval(values.to_numpy(), seed=0)
        rows.append({"design": design, "method": method, "cost": costs[design], "speedup": geomean(values.to_numpy()),
                     "low": low, "high": high})
    table = pd.DataFrame(rows)
    for _, group in table.groupby("method"):
        table.loc[group.index, "front"] = pareto(group["cost"].to_numpy(), group["speedup"].to_numpy())
    return table.astype({"front": bool})


def design_gains(table: pd.DataFrame) -> pd.DataFrame:
    """What the next higher value of a parameter brings, geometric mean over the values of all others.

    Args:
        table: as `per_design` makes it, with a column per parameter of the grid.

    Returns:
        Columns parameter, lower, value, and one per method: speedup with `value` over that with `lower`.
    """
    parameters, rows = [name for name in table.columns if name not in REDUCED], []
    for parameter in parameters:
        others = ["method", *(name for name in parameters if name != parameter)]
        wide = np.log(table.pivot(index=others, columns=parameter, values="speedup"))
        for lower, value in pairwise(sorted(wide.columns)):
            means = np.exp((wide[value] - wide[lower]).groupby(level="method").mean())
            rows.append({"parameter": parameter, "lower": lower, "value": value, **means})
    return pd.DataFrame(rows, columns=["parameter", "lower", "value", *DESIGN_METHODS])


def design_metrics(table: pd.DataFrame, *, baseline: str) -> dict[str, float]:
    """Numbers of an exploration, flat; a cost that no design reaches is NaN.

    Args:
        table: as `per_design` makes it, with a column per parameter of the grid.
        baseline: name of the baseline design, whose cost and speedup with default programs are 1.

    Returns:
        For each method: baseline/<method>/speedup; of_optimum/<method>, mean and least over designs; front/<method>/
        designs, and cost: of the cheapest design at least as fast as each on the default programs' front, or of that
        one if that is cheaper, over its cost, geometric mean; bought_back/<method>/cost and speedup: the cheapest
        design at least as fast as the baseline with default programs; in_hardware/<method>/cost: the cheapest
        design that is with default programs at least as fast as the baseline with this method's; gain/
        <parameter>=<value>/<method>: as `design_gains`.
    """
    speedups = table.pivot(index="design", columns="method", values="speedup")
    costs = table.drop_duplicates("design").set_index("design")["cost"].reindex(speedups.index)
    fronts = table.pivot(index="design", columns="method", values="front")
    metrics: dict[str, float] = {"designs": len(speedups)}
    for method in DESIGN_METHODS:
        own = speedups[method]
        share = own / speedups["optimum"]
        cheapest = _cheapest(costs, own, 1.0)
        metrics |= {
            f"baseline/{method}/speedup": own[baseline],
            f"of_optimum/{method}": geomean(share.to_numpy()), f"of_optimum/{method}_least": share.min(),
            f"front/{method}/designs": int(fronts[method].sum()),
            f"front/{method}/cost": _kept(costs, speedups["default"], own, fronts["default"]),
            f"bought_back/{method}/cost": costs.get(cheapest, np.nan),
            f"bought_back/{method}/speedup": own.get(cheapest, np.nan),
            f"in_hardware/{method}/cost": costs.get(_cheapest(costs, speedups["default"], own[baseline]), np.nan),
        }
    for row in design_gains(table).to_dict(orient="records"):
        metrics |= {f"gain/{row['parameter']}={row['value']:g}/{method}": row[method] for method in DESIGN_METHODS}
    return metrics


def designs_table(table: pd.DataFrame) -> Table:
    """Lay out the designs that are on the front of any method, cheapest first; an asterisk marks the front."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("design", no_wrap=True)
    for heading in ("cost", *DESIGN_METHODS.values()):
        shown.add_column(heading, justify="right", no_wrap=True)
    rows = table[table["design"].isin(table.loc[table["front"], "design"])].sort_values(["cost", "design"])
    for (cost, design), group in rows.groupby(["cost", "design"]):
        cells = group.set_index("method")
        marks = [f"{cells.at[method, 'speedup']:.3f}{'*' if cells.at[method, 'front'] else ' '}"
                 for method in DESIGN_METHODS]
        shown.add_row(str(design), f"{cost:.3f}", *marks)
    return shown


def _cheapest(costs: pd.Series, speedups: pd.Series, wanted: float) -> str | None:
    """Name the cheapest design that is fast enough; of equally cheap ones the fastest."""
    enough = speedups.index[speedups >= wanted]
    return min(enough, key=lambda name: (costs[name], -speedups[name]), default=None)


def _kept(costs: pd.Series, default: pd.Series, own: pd.Series, front: pd.Series) -> float:
    ratios = []
    for design in front.index[front.astype(bool)]:
        found = _cheapest(costs, own, default[design])
        ratios.append(min(1.0, costs.get(found, np.inf) / costs[design]))
    return geomean(np.array(ratios))
