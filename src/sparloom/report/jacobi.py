"""How fast Jacobi's method is with two steps fused: metrics, table and figure."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator
from rich.table import Table

from sparloom.measure import bootstrap_interval, geomean
from sparloom.report.figures import COLOURS, TICKS, figure, save, styled

__all__ = ["draw_jacobi", "jacobi_metrics", "jacobi_ratios", "jacobi_table"]

PREFIXES: Mapping[str, str] = {"definite": "", "pattern": "pattern/", "anchors": "anchors/"}
PARTS: Mapping[str, str] = {
    "definite": "positive definite", "pattern": "meshes, values of a Laplacian", "anchors": "anchors"}
PEERS = ("unfused", "unfused_renumbered", "separated", "mkl", "torch", "scipy")


def jacobi_ratios(frame: pd.DataFrame, fast: str, slow: str, column: str = "seconds") -> pd.Series:
    """How many times as fast as `slow` the method `fast` is, by part and matrix, where both were timed.

    Args:
        frame: per_matrix.parquet of `bench_jacobi`.
        column: "seconds" of two steps or "solve_seconds".
    """
    seconds = frame.dropna(subset=column).pivot(index=["part", "matrix"], columns="method", values=column)
    if fast not in seconds or slow not in seconds:
        return pd.Series(dtype=float)
    return (seconds[slow] / seconds[fast]).dropna()


def jacobi_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce seconds over matrices.

    Args:
        frame: per_matrix.parquet of `bench_jacobi`.
        seed: of the bootstrap over matrices.

    Returns:
        `matrices`; `speedup_over_<method>`, how many times as fast as that method fuse="auto" makes two steps, as
        geometric mean with its 95 % bounds `_low` and `_high` and the extremes `_min` and `_max`: "unfused" has the
        unknowns in the order of A, "unfused_renumbered" by reverse Cuthill-McKee, "separated" the order and the tiles
        of the fused code, of which nothing is fused; `speedup_over_best_unfused`, over the faster of both orders.
        `fused_speedup_over_unfused` and, in the order of A, `fused_natural_speedup_over_unfused`: the same for
        fuse="always"; `solve_speedup_over_unfused`, of whole solutions; `fused_share`, of matrices on which "auto"
        fuses, renumbers or both; `steps_median`, of the slowest column; `converged`, the share of columns. Of positive
        definite matrices; of the other parts behind `pattern/` and `anchors/`.
    """
    found: dict[str, float] = {}
    for part, rows in frame.groupby("part", sort=False):
        prefix = PREFIXES[part]
        found[f"{prefix}matrices"] = int(rows["matrix"].nunique())
        for peer in PEERS:
            found |= _bounded(f"{prefix}speedup_over_{peer}", jacobi_ratios(rows, "auto", peer), seed)
        for name in ("fused", "fused_natural"):
            found |= _bounded(f"{prefix}{name}_speedup_over_unfused", jacobi_ratios(rows, name, "unfused"), seed)
        both = pd.concat([jacobi_ratios(rows, "auto", peer) for peer in PEERS[:2]], axis=1)
        found |= _bounded(f"{prefix}speedup_over_best_unfused", both.min(axis=1), seed)
        found |= _bounded(f"{prefix}solve_speedup_over_unfused",
                          jacobi_ratios(rows, "auto", "unfused", "solve_seconds"), seed)
        auto = rows[rows["method"] == "auto"]
        found |= {f"{prefix}fused_share": float((~auto["same"].astype(bool)).mean()),
                  f"{prefix}steps_median": float(auto["steps_most"].median()),
                  f"{prefix}converged": float(auto["converged"].mean() / auto["columns"].iloc[0])}
    return found


def jacobi_table(frame: pd.DataFrame) -> Table:
    """Lay out, matrix by matrix, how many times as fast as the others two steps are with fuse="auto"."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title="two steps of Jacobi's method, fuse=\"auto\": times as fast as")
    table.add_column("matrix", no_wrap=True)
    for heading in ("nonzeros", "fused rows", "own unfused", "renumbered", "same tiles", "MKL", "torch", "SciPy",
                    "steps"):
        table.add_column(heading, justify="right", no_wrap=True)
    over = {peer: jacobi_ratios(frame, "auto", peer) for peer in PEERS}
    auto = frame[frame["method"] == "auto"]
    for part, label in PARTS.items():
        rows = auto[auto["part"] == part].sort_values("nnz")
        if rows.empty:
            continue
        table.add_row(label, style="bold")
        for row in rows.itertuples():
            cells = [_cell(over[peer], (part, row.matrix)) for peer in PEERS]
            share = "none" if row.same else f"{row.fused_rows:.0%}"
            table.add_row(row.matrix, f"{row.nnz:,}", share, *cells, f"{row.steps_most:.0f}")
    return table


@styled
def draw_jacobi(frame: pd.DataFrame, stem: Path) -> None:
    """Draw speedups over the own unfused solver, sorted, a panel for each part (the paper's figure 13)."""
    parts = [part for part in PARTS if part in set(frame["part"])]
    drawn, panels = figure(1.6 + 2.6 * len(parts), 3.2, columns=len(parts))
    auto, always = (jacobi_ratios(frame, method, "unfused") for method in ("auto", "fused"))
    for axes, part in zip(panels, parts, strict=True):
        order = auto[part].sort_values().index
        places = np.arange(1, len(order) + 1)
        axes.plot(places, always[part][order], "x", color=COLOURS["trees"], markersize=4, label="always fused")
        axes.plot(places, auto[part][order], "o", color=COLOURS["cognate"], markersize=4, label="fused or not (auto)")
        axes.axhline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
        mean = geomean(auto[part].to_numpy())
        axes.axhline(mean, color=COLOURS["cognate"], linewidth=0.8)
        axes.annotate(f"{mean:.2f}", (1, mean), xytext=(0, 3), textcoords="offset points", fontsize=8)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([0.8, 0.9, 1.1, 1.2, 1.3, 1.4, *TICKS]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(PARTS[part], fontsize=9)
        axes.set_xlabel(f"{len(order)} matrices, by speedup")
    panels[0].set_ylabel("speedup over own unfused")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    save(drawn, stem)


def _cell(ratios: pd.Series, place: tuple[str, str]) -> str:
    return f"{ratios[place]:.2f}" if place in ratios.index else ""


def _bounded(key: str, ratios: pd.Series, seed: int) -> dict[str, float]:
    if ratios.empty:
        return {}
    values = ratios.to_numpy()
    low, high = bootstrap_interval(values, seed=seed)
    return {key: geomean(values), f"{key}_low": low, f"{key}_high": high, f"{key}_min": float(values.min()),
            f"{key}_max": float(values.max())}
