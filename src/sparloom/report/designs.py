"""Draw designs of an accelerator, sensitivity to constants, signs beside the paper's, and the trials of a campaign."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from sparloom.report.figures import Line, draw_lines, figure, save, set_ticks, styled

DESIGN_METHODS: Mapping[str, str] = {
    "default": "default program", "transferred": "model of the baseline", "learned": "model of the design",
    "optimum": "best program",
}
"""How programs are chosen -> as tables and figures call it."""
REDUCED = ("design", "method", "cost", "speedup", "low", "high", "front")
LOOKS: Mapping[str, tuple[str, str, str]] = {
    "default": ("#8a8a8a", "--", "o"), "transferred": ("#b5443c", "-", "s"), "learned": ("#5f7fa8", "-.", "^"),
    "optimum": ("#2b2b2b", ":", "|"),
}
"""Colour, line and marker of each method; lines and markers differ too, for print without colour."""

TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20)
UNITS: Mapping[str, str] = {"pes": "PEs", "l2_kib": "L2, KiB", "llc_kib": "LLC, KiB", "dram_gb_per_s": "DRAM, GB/s"}
OPS: Mapping[str, tuple[str, str, float]] = {"spmm": ("SpMM", "#b5443c", -0.16), "sddmm": ("SDDMM", "#5f7fa8", 0.16)}
PANELS = (("optimum", "optimum over default"), ("tau", "Kendall tau of the orders"), ("kept", "share of optimum kept"))
MARKERS: Mapping[str, str] = {"low value": "<", "high value": ">", "the other choice": "o"}
VERDICTS: Mapping[str, tuple[str, str]] = {
    "agree": ("#d7e6d3", "same sign, or both within 5 %"), "tie": ("#f3eedd", "one within 5 %, the other not"),
    "opposite": ("#efc0b8", "opposite signs"), "base": ("#ffffff", "base of the others"),
}
FORMATS: Mapping[str, str] = {"barrier": "{:+.1f}", "bypass": "{:+.1f}", "gain": "{:.2f}", "tiles": "{:.2f}"}


def draw_campaign(history: pd.DataFrame, stem: Path) -> None:
    """Draw the share of the speed found in the end that was found after each trial.

    Args:
        history: trials in their order: problem, seconds, NaN for failures.
    """
    least = history["seconds"].groupby(history["problem"]).cummin()
    names = sorted(set(history["problem"]))
    best = pd.DataFrame({name: least.where(history["problem"] == name) for name in names}).ffill()
    shares = np.exp(np.log(best.min() / best).mean(axis=1)) if best.notna().any(axis=None) else history["seconds"]
    line = Line(np.arange(1, len(shares) + 1), shares, "", "#b5443c", "-")
    draw_lines({"Best configurations found, mean over problems": [line]}, stem, x="trials",
               y="share of the final speed", size=(6.0, 3.2))


def draw_trusts(trusts: pd.DataFrame, stem: Path) -> None:
    """Draw how much each source of a campaign was trusted after each trial: a column for each, 0 to 1."""
    lines = [Line(np.arange(len(trusts)), trusts[name], name, f"C{number % 10}", "-")
             for number, name in enumerate(trusts)]
    draw_lines({"Trust in sources": lines}, stem, x="trials", y="trust", size=(6.0, 3.2))


def design_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Average the gain of the next higher value of a parameter: geometric mean over all other parameters.

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


@styled
def draw_designs(table: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw Pareto fronts, what software buys back, and gains by resource, from designs.parquet of `explore_designs`."""
    drawn, (fronts, gains) = figure(11, 4.6, columns=2)
    _draw_fronts(fronts, table)
    _draw_gains(gains, table)
    save(drawn, stem, title=title, legend=True, loc="outside lower left", fontsize=9)


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
        set_ticks(axis, TICKS)
    axes.grid(visible=True, axis="both")
    axes.set(xlabel="cost over the baseline (proxy)", ylabel="speedup over the baseline")
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


@styled
def draw_sensitivity(table: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw sensitivity.parquet: numbers at the low and high value of every constant, the most sensitive on top."""
    changed = table[table["constant"] != "baseline"]
    order = changed.groupby("constant")["tau"].min().sort_values(ascending=False).index
    heights = pd.Series(np.arange(len(order)), index=order)
    drawn, axes = figure(9.6, 1.4 + 0.3 * len(order), columns=len(PANELS))
    for axis, (key, label) in zip(axes, PANELS, strict=True):
        for op, (name, colour, shift) in OPS.items():
            rows = changed[changed["op"] == op]
            for constant, values in rows.groupby("constant", sort=False)[key]:
                height = np.full(len(values), heights[constant] + shift)
                axis.plot(values, height, color=colour, linewidth=1)
                ends = list(MARKERS.values())[:2] if len(values) == 2 else ["o"] * len(values)
                for end, value in zip(ends, values, strict=True):
                    axis.plot(value, height[0], end, color=colour, markersize=5)
            axis.plot([], [], "-", color=colour, label=name)
            base = table.loc[(table["op"] == op) & (table["constant"] == "baseline"), key]
            if key == "optimum":
                axis.axvline(float(base.iloc[0]), color=colour, linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_title(label, fontsize=9.5)
        axis.set_yticks(heights, order if axis is axes[0] else [], fontsize=8)
        axis.grid(visible=True, axis="both")
    for label, end in MARKERS.items():
        axes[0].plot([], [], end, color="#606060", label=label)
    save(drawn, stem, title=title, legend=True, loc="outside lower left", columns=5, fontsize=9)


@styled
def draw_signs(frame: pd.DataFrame, stem: Path, *, table: str, title: str) -> None:
    """Draw one table of `check_spade_signs`: the paper's value above, ours below in bold.

    Args:
        frame: signs.parquet of a run.
        table: "barrier", "bypass" and "gain" have a column per matrix, "tiles" one per setting.
    """
    rows = frame[frame["table"] == table]
    if rows.empty:
        raise ValueError(f"no row of table {table!r}: the run has {', '.join(frame['table'].unique())}")
    by_tile = table == "tiles"
    across = rows["setting"] if by_tile else rows["matrix"]
    down = rows["matrix"] if by_tile else rows["op"].map({"spmm": "SpMM", "sddmm": "SDDMM"}) + rows["width"].map(
        " {}".format)
    columns, lines = list(dict.fromkeys(across)), list(dict.fromkeys(down))
    drawn, (axes,) = figure(1.1 + 0.78 * len(columns), 1.1 + 0.5 * len(lines))
    for column, line, row in zip(across, down, rows.itertuples(), strict=True):
        x, y = columns.index(column), lines.index(line)
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=VERDICTS[row.verdict][0], edgecolor="white", linewidth=2))
        axes.text(x + 0.5, y + 0.3, FORMATS[table].format(row.paper), ha="center", va="center", fontsize=8.5,
                  color="#606060")
        axes.text(x + 0.5, y + 0.7, FORMATS[table].format(row.ours), ha="center", va="center", fontsize=8.5,
                  fontweight="bold")
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(lines), 0)
    axes.set_xticks([column + 0.5 for column in range(len(columns))],
                    [column.replace(" x ", " x\n") for column in columns], fontsize=9)
    axes.set_yticks([line + 0.5 for line in range(len(lines))], lines, fontsize=9)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title(title)
    shown = [Patch(facecolor=colour, edgecolor="#c8c8c8", label=label) for verdict, (colour, label) in VERDICTS.items()
             if (rows["verdict"] == verdict).any()]
    drawn.legend(handles=shown, loc="outside lower left", ncols=len(shown), fontsize=8, frameon=False)
    save(drawn, stem)
