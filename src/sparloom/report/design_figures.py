"""Cost of designs against their speedup, with default and with chosen programs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from sparloom.report.designs import DESIGN_METHODS, design_gains
from sparloom.report.figures import figure, save, styled

__all__ = ["draw_designs"]

LOOKS: Mapping[str, tuple[str, str, str]] = {
    "default": ("#8a8a8a", "--", "o"), "transferred": ("#b5443c", "-", "s"), "learned": ("#5f7fa8", "-.", "^"),
    "optimum": ("#2b2b2b", ":", "|"),
}
"""Colour, line and marker of each method; lines and markers differ too, for print without colour."""
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20)


UNITS: Mapping[str, str] = {"pes": "PEs", "l2_kib": "L2, KiB", "llc_kib": "LLC, KiB", "dram_gb_per_s": "DRAM, GB/s"}


@styled
def draw_designs(table: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the Pareto front of every method with what software buys back, and what more of each resource brings.

    Args:
        table: designs.parquet of a run of `explore_designs`.
    """
    drawn, (fronts, gains) = figure(11, 4.6, columns=2)
    _draw_fronts(fronts, table)
    _draw_gains(gains, table)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=11)
    drawn.legend(*fronts.get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=9)
    save(drawn, stem)


def _draw_fronts(axes: Axes, table: pd.DataFrame) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for method, label in DESIGN_METHODS.items():
        colour, line, marker = LOOKS[method]
        front = table[(table["method"] == method) & table["front"]].sort_values("cost")
        axes.plot(front["cost"], front["speedup"], line, marker=marker, markersize=4.5, color=colour, linewidth=1.4,
                  drawstyle="steps-post", label=label)
    default = table[table["method"] == "default"]
    axes.scatter(default["cost"], default["speedup"], s=14, facecolors="none", edgecolors=LOOKS["default"][0],
                 linewidths=0.8, label="default program, off the front")
    _draw_bought_back(axes, table)
    axes.plot(1, 1, "*", markersize=13, color="#2b2b2b", markeredgecolor="white", label="baseline, default program",
              linestyle="none", zorder=4)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(TICKS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    axes.grid(visible=True, axis="both")
    axes.set_xlabel("cost over the baseline (proxy)")
    axes.set_ylabel("speedup over the baseline")
    axes.set_title("fronts", fontsize=9.5)


def _draw_bought_back(axes: Axes, table: pd.DataFrame) -> None:
    """Point from the baseline to the cheapest design that is as fast with programs of the transferred model."""
    fast = table[(table["method"] == "transferred") & (table["speedup"] >= 1)]
    cost = float(fast["cost"].min()) if len(fast) else 1.0
    if cost < 1:
        axes.annotate("", (cost, 1), (1, 1), arrowprops={"arrowstyle": "->", "color": "#2b2b2b", "linewidth": 1.2})
        axes.annotate(f"{100 * (1 - cost):.0f} % cheaper", (1, 1), xytext=(8, -4), textcoords="offset points",
                      ha="left", va="top", fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})


def _draw_gains(axes: Axes, table: pd.DataFrame) -> None:
    gains = design_gains(table)
    heights = np.arange(len(gains))[::-1]
    for shift, method in zip((0.21, 0.07, -0.07, -0.21), DESIGN_METHODS, strict=True):
        colour, _, marker = LOOKS[method]
        axes.plot(gains[method], heights + shift, marker, color=colour, markersize=5.5, linestyle="none")
    axes.axvline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    labels = [f"{UNITS.get(row.parameter, row.parameter)} {row.lower:g} → {row.value:g}" for row in gains.itertuples()]
    axes.set_yticks(heights, labels, fontsize=9)
    axes.grid(visible=True, axis="both")
    axes.set_xlabel("speedup, all else equal (geometric mean)")
    axes.set_title("what more hardware brings", fontsize=9.5)
