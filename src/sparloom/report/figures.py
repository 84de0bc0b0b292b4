"""Draw COGNATE's figures 4 to 6, simulator levels and spy plots, in one style; each as PNG and SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from sparloom.files import atomic_path
from sparloom.measure import geomean
from sparloom.report.runs import method_rows

if TYPE_CHECKING:
    from sparloom.sparse import Pattern

COLOURS: Mapping[str, str] = {
    "random": "#c8c8c8", "vendor": "#76a05f", "static": "#9a9a9a",
    "trees": "#5f7fa8", "trees_source": "#8fa9c9", "zero_shot": "#d9a441",
    "no_transfer": "#7aa974", "cognate": "#b5443c", "optimum": "#2b2b2b",
}
NAMES: Mapping[str, str] = {
    "random": "random", "vendor": "cuSPARSE", "static": "static",
    "trees": "trees", "trees_source": "trees + source score",
    "zero_shot": "zero-shot", "no_transfer": "no transfer", "cognate": "COGNATE", "optimum": "optimum",
}
TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)  # of logarithmic speedups
STYLE = {
    "font.family": "sans-serif", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e6e6e6", "grid.linewidth": 0.8, "axes.axisbelow": True,
    "axes.titlesize": 11, "axes.titlelocation": "left", "legend.frameon": False, "svg.hashsalt": "sparloom",
    "xtick.bottom": False, "ytick.left": False,
}


TITLES: Mapping[str, str] = {
    "spmm": "SpMM", "sddmm": "SDDMM", "gemm_spmm": "GeMM-SpMM", "spmm_spmm": "SpMM-SpMM", "spmm_gemm": "SpMM-GeMM",
    "attention": "attention", "sage_training": "GraphSAGE means", "sage_steps": "GraphSAGE step",
}
styled = matplotlib.rc_context(STYLE)
"""Decorates what draws: the style holds while it runs and touches nothing else."""

OPS: Mapping[str, tuple[str, str, str]] = {"spmm": ("SpMM", "#b5443c", "o"), "sddmm": ("SDDMM", "#5f7fa8", "D")}
PANELS = (
    ("error", "median |log(T1 / T0)|", 0.15), ("spearman", "rank correlation of the times", 0.85),
    ("traffic_worst", "greatest difference of DRAM lines", 0.10),
)
CELLS = 256   # of the longer side
LINES = 64    # more boundaries than this are not drawn one by one


def op_title(op: str) -> str:
    """Return the title of an operation in tables and figures."""
    return TITLES.get(op, op)


def figure(width: float, height: float, *, rows: int = 1, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Make a figure of `width` x `height` inches, row by row; called within `styled`, it has the house style."""
    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots(rows, columns, squeeze=False).ravel()


def logarithmic(axes: Axes, *, both: bool = False) -> None:
    """Give the upright axis of speedups, or both, few round ticks, and a line at 1."""
    # the line comes first: a single value leaves a logarithmic axis without a span, and later drawing divides by it
    axes.axhline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_yscale("log")
    if both:
        axes.set_xscale("log")
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.yaxis,):
        set_ticks(axis, (*TICKS, 200, 500, 1000))


class _RoundestTicks(FixedLocator):
    """Leaves out ticks whose labels would overlap those of rounder ones."""

    POINTS: Mapping[str, float] = {"x": 22.0, "y": 12.0}  # between two labels

    def __call__(self) -> np.ndarray:
        low, high = sorted(self.axis.get_view_interval())
        seen = [tick for tick in sorted(set(self.locs), key=_roundness) if low <= tick <= high]
        box, transform = self.axis.axes.bbox, self.axis.get_transform()
        extent = (box.width if self.axis.axis_name == "x" else box.height) * 72 / self.axis.axes.figure.dpi
        at = transform.transform(np.array([low, high, *seen]))
        places = (at[2:] - at[0]) / ((at[1] - at[0]) or 1.0) * extent
        kept: list[int] = []
        for number, place in enumerate(places):
            if all(abs(place - places[other]) >= self.POINTS[self.axis.axis_name] for other in kept):
                kept.append(number)
        return np.array(sorted(seen[number] for number in kept))


def _roundness(tick: float) -> tuple[int, float]:
    """Order ticks: powers of ten first, then 5, 2, 3 and the rest."""
    digits = float(f"{tick:e}".partition("e")[0])
    ranks = {1.0: 0, 5.0: 1, 2.0: 2, 3.0: 3, 1.5: 4, 7.0: 5}
    return ranks.get(digits, len(ranks)), tick


def set_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    """Mark these values of a logarithmic axis and no others, as plain numbers, as many as have room."""
    axis.set_major_locator(_RoundestTicks(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def width_points(axes: Axes, found: Mapping[tuple[str, int], np.ndarray], colours: Mapping[str, str]) -> None:
    """Draw geometric means by name and width, a group of points for each name, and a dot for every value.

    Args:
        found: values by name and width, in the order of the groups; empty ones get no point.
    """
    names, widths = (list(dict.fromkeys(key[part] for key in found)) for part in (0, 1))
    step = min(0.27, 0.8 / max(1, len(widths)))
    for (name, width), values in found.items():
        if values.size:
            at = names.index(name) + step * (widths.index(width) - (len(widths) - 1) / 2)
            axes.scatter(np.full(values.size, at), values, s=6, color="#9a9a9a", alpha=0.5, linewidth=0)
            axes.plot(at, geomean(values), "o", color=colours[name], markersize=7, markeredgecolor="#2b2b2b",
                      markeredgewidth=0.6)
            axes.annotate(f"{width}", (at, 0), xycoords=("data", "axes fraction"), xytext=(0, -10),
                          textcoords="offset points", ha="center", fontsize=8)
    for border in np.arange(len(names) - 1) + 0.5:
        axes.axvline(border, color="#e6e6e6", linewidth=0.8)
    axes.set_xlim(-0.5, max(1, len(names)) - 0.5)
    axes.tick_params(axis="x", pad=13)


def save(
    drawn: Figure, stem: Path, *, title: str = "", legend: bool = False, loc: str = "outside lower center",
    columns: int = 3, fontsize: int = 8,
) -> None:
    """Write `stem`.png and `stem`.svg, atomically; equal figures give equal files.

    Args:
        title: of the whole figure.
        legend: list the entries of all panels below them.
        loc, columns, fontsize: of the legend.
    """
    if title:
        drawn.suptitle(title, x=0.01, ha="left", fontsize=11)
    entries: dict[str, Any] = {}
    for axes in drawn.axes if legend else ():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        drawn.legend(entries.values(), entries.keys(), loc=loc, ncols=columns, fontsize=fontsize)
    formats = {"png": {"dpi": 200, "metadata": {"Software": None}}, "svg": {"metadata": {"Date": None}}}
    for ending, options in formats.items():
        with atomic_path(stem.with_suffix(f".{ending}")) as partial:
            drawn.savefig(partial, format=ending, **options)
        drawn.set_layout_engine("none")  # what was laid out once stays where it is


@dataclass(frozen=True)
class Line:
    """A line of `draw_lines`.

    Args:
        low, high: bounds of a band around it, if there is one.
        style: as matplotlib writes it, such as "o-".
    """

    x: Any
    y: Any
    label: str
    colour: str | None = None
    style: str = ".-"
    low: Any = None
    high: Any = None


def ranked(values: pd.Series, label: str, colour: str) -> Line:
    """Make a line of values in their order, over the ranks 1, 2, ..."""
    return Line(np.arange(1, len(values) + 1), values.to_numpy(), label, colour)


@styled
def draw_lines(
    panels: Mapping[str, Sequence[Line]], stem: Path, *, x: str, y: str, title: str = "",
    size: tuple[float, float] | None = None, at: float | None = None, ticks: Sequence[float] = (), columns: int = 3,
    **options: Any,
) -> None:
    """Draw lines, a panel for each title.

    Args:
        x, y: labels of the axes.
        at: value that a dashed line marks.
        ticks: on a logarithmic horizontal axis; none: it is linear, unless `options` say otherwise.
        columns: of the legend.
        options: of every panel, such as ylim, see `Axes.set`.
    """
    count = max(1, len(panels))
    drawn, axes = figure(*(size or (3.6 * count, 3.4)), columns=count)
    for axis, (name, lines) in zip(axes, panels.items(), strict=False):
        for line in lines:
            (curve,) = axis.plot(line.x, line.y, line.style, color=line.colour, linewidth=1, markersize=4,
                                 label=line.label)
            if line.low is not None:
                axis.fill_between(line.x, line.low, line.high, alpha=0.13, linewidth=0, color=curve.get_color())
        if at is not None:
            axis.axhline(at, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set(title=name, xlabel=x, **options)
        if len(ticks):
            axis.set_xscale("log")
            set_ticks(axis.xaxis, ticks)
        if any(isinstance(value, str) for line in lines for value in line.x):
            axis.tick_params(axis="x", rotation=60, labelsize=8)
    axes[0].set_ylabel(y)
    save(drawn, stem, title=title, legend=True, columns=columns)


@styled
def draw_groups(
    panels: Mapping[str, pd.DataFrame], looks: Mapping[str, tuple[str, str]], stem: Path, *, y: str, width: float,
    points: bool = False, at: float | None = None, top: float | None = None, columns: int = 4, **text: Any,
) -> None:
    """Draw a group of bars for each row of a table, named by its index, a panel for each title.

    Args:
        looks: column -> label and colour, in the order of the bars.
        y: label of the upright axis.
        width: inches of a panel.
        points: draw points on a logarithmic axis, on which the length of a bar means nothing.
        at: value that a dashed line marks.
        top: of the axis; higher bars say their number.
        columns: of the legend.
        text: style of the names.
    """
    drawn, axes = figure(1.4 + width * len(panels), 3.4, columns=len(panels))
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        step = (0.7 if points else 0.84) / len(looks)
        for number, (column, (label, colour)) in enumerate(looks.items()):
            places = np.arange(len(values)) + (number - (len(looks) - 1) / 2) * step
            if points:
                axis.plot(places, values[column], "o", color=colour, markersize=5, label=label)
            else:
                axis.bar(places, values[column], 0.92 * step, color=colour, label=label)
            for place, value in zip(places, values[column], strict=True):
                if top is not None and value > top:
                    axis.annotate(f"{value:.1f}", (place, top), ha="center", va="bottom", fontsize=8)
        if points:
            for border in np.arange(len(values) - 1) + 0.5:
                axis.axvline(border, color="#e6e6e6", linewidth=0.8)
            axis.set_yscale("log")
            set_ticks(axis.yaxis, [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)])
        if at is not None:
            axis.axhline(at, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_xticks(np.arange(len(values)), list(values.index), **text)
        axis.set_ylim(top=top)
        axis.set_title(title, pad=14 if top else None)
    axes[0].set_ylabel(y)
    save(drawn, stem, legend=True, columns=columns)


@styled
def draw_means(
    panels: Mapping[str, Mapping[tuple[str, Any], np.ndarray]], looks: Mapping[str, tuple[str, str]], stem: Path, *,
    y: str, size: tuple[float, float], title: str = "", rows: bool = False, **text: Any,
) -> None:
    """Draw geometric means on a logarithmic axis, a group of points for each name, and a dot for every value.

    Args:
        panels: title -> values by name and width, "" if there is only one; see `width_points`.
        looks: name -> label and colour.
        y: label of the upright axis.
        size: of the figure.
        rows: panels stand above each other.
        text: style of the names.
    """
    drawn, axes = figure(*size, **{"rows" if rows else "columns": max(1, len(panels))})
    for axis, (name, found) in zip(axes, panels.items(), strict=False):
        names = list(dict.fromkeys(each for each, _ in found))
        width_points(axis, found, {each: looks[each][1] for each in names})
        logarithmic(axis)
        axis.set_xticks(range(len(names)), [looks[each][0] for each in names], **{"fontsize": 8, **text})
        axis.set_title(name)
        if rows or axis is axes[0]:
            axis.set_ylabel(y)
    save(drawn, stem, title=title)


@styled
def draw_intervals(
    labels: Sequence[str], series: Mapping[str, tuple[str, pd.DataFrame]], stem: Path, *, x: str, title: str,
    at: float | None = None, digits: int = 3,
) -> None:
    """Draw values with their bounds, the first label on top.

    Args:
        series: name -> colour, and columns value, low and high indexed by the place of the label.
        x: label of the horizontal axis.
        at: value that a dashed line marks.
        digits: of the numbers beside the bounds.
    """
    drawn, (axes,) = figure(8.4, 1.5 + 0.38 * len(labels))
    overlap = any(first.index.intersection(second.index).size
                  for (_, first), (_, second) in pairwise(series.values()))
    shifts = np.linspace(0.2, -0.2, len(series)) if overlap else np.zeros(len(series))
    for shift, (name, (colour, values)) in zip(shifts, series.items(), strict=True):
        heights = shift - values.index.to_numpy()
        axes.hlines(heights, values["low"], values["high"], color=colour, linewidth=2)
        axes.plot(values["value"], heights, "o", color=colour, markersize=5, label=name)
        for height, value, high in zip(heights, values["value"], values["high"], strict=True):
            axes.annotate(f"{value:.{digits}f}", (high, height), xytext=(4, 0), color=colour,
                          textcoords="offset points", va="center", fontsize=7)
    if at is not None:
        axes.axvline(at, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.margins(x=0.1)
    axes.set_ylim(0.6 - len(labels), 0.6)
    axes.set_yticks(-np.arange(len(labels)), labels, fontsize=8.5)
    axes.grid(visible=True, axis="x")
    axes.set(xlabel=x, title=title)
    save(drawn, stem, legend=True, fontsize=9)


def draw_methods(metrics: Mapping[str, float], stem: Path, *, prefix: str, title: str) -> None:
    """Draw geometric mean speedups of all methods with their bootstrap bounds (figure 4)."""
    rows = method_rows(metrics, prefix)
    bounds = {"value": "", "low": "_low", "high": "_high"}
    values = pd.DataFrame([{name: metrics[f"{prefix}/{key}_speedup{ending}"] for name, ending in bounds.items()}
                           for _, key, _ in rows])
    draw_intervals([label for label, *_ in rows], {"geometric mean, 95 %": (COLOURS["cognate"], values)}, stem,
                   x="speedup over the default", title=title, at=1, digits=2)


@styled
def draw_matrices(frame: pd.DataFrame, stem: Path, *, title: str, method: str = "cognate") -> None:
    """Draw the speedup on every matrix, sorted by the optimum (figure 5); means over seeds.

    Args:
        frame: as `per_matrix` makes it.
        method: whose first and best of five choices are drawn below the optimum.
    """
    speedups = frame.assign(
        top1=np.log(frame["baseline_seconds"] / frame["top1_seconds"]),
        top5=np.log(frame["baseline_seconds"] / frame["top5_seconds"]),
    ).groupby(["method", "matrix"])[["top1", "top5"]].mean()
    order = speedups.loc["optimum", "top1"].sort_values().index
    drawn, (axes,) = figure(7.2, 3.4)
    ranks = np.arange(1, len(order) + 1)

    def points(chooser: str, top: str) -> np.ndarray:
        return np.exp(speedups.loc[chooser, top].reindex(order).to_numpy())

    axes.plot(ranks, points("optimum", "top1"), color=COLOURS["optimum"], linewidth=1.2, label="optimum")
    colour, name = COLOURS.get(method, COLOURS["cognate"]), NAMES.get(method, method)
    axes.plot(ranks, points(method, "top5"), color=colour, linewidth=0.9, alpha=0.55, label=f"{name} top-5")
    axes.scatter(ranks, points(method, "top1"), color=colour, s=9, label=f"{name} top-1", zorder=3)
    axes.axhline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_yscale("log")
    set_ticks(axes.yaxis, TICKS)
    axes.set(xlabel="matrices, by optimum", ylabel="speedup over the default", title=title)
    axes.legend(loc="upper left")
    save(drawn, stem)


@styled
def draw_curves(frame: pd.DataFrame, stem: Path) -> None:
    """Draw loss, ordered pair accuracy and Kendall tau over epochs, mean and range over seeds (figure 6).

    Args:
        frame: columns method, seed, epoch, and train/ and validation/ prl, opa and kendall_tau.
    """
    panels = (("prl", "ranking loss"), ("opa", "ordered pair accuracy"), ("kendall_tau", "Kendall tau"))
    drawn, axes = figure(9.6, 3.2, columns=3)
    for axis, (key, label) in zip(axes, panels, strict=True):
        for method, rows in frame.groupby("method", sort=False):
            for stage, style in (("train", "-"), ("validation", "--")):
                if f"{stage}/{key}" not in rows or rows[f"{stage}/{key}"].isna().all():
                    continue
                by_epoch = rows.dropna(subset=f"{stage}/{key}").groupby("epoch")[f"{stage}/{key}"]
                mean, colour = by_epoch.mean(), COLOURS.get(str(method), COLOURS["cognate"])
                axis.plot(mean.index, mean, style, color=colour, linewidth=1.2,
                          label=f"{NAMES.get(str(method), method)}, {stage}")
                axis.fill_between(mean.index, by_epoch.min(), by_epoch.max(), color=colour, alpha=0.12, linewidth=0)
        axis.set(xlabel="epoch", title=label)
    save(drawn, stem, legend=True, columns=4)


@styled
def draw_levels(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw errors, rank correlations and traffic with their limits: per_matrix.parquet of `validate_simulator`."""
    order = frame.groupby("matrix")["error"].max().sort_values().index
    heights = pd.Series(np.arange(len(order)), index=order)
    drawn, axes = figure(9.6, 1.3 + 0.21 * len(order), columns=len(PANELS))
    for axis, (key, label, bar) in zip(axes, PANELS, strict=True):
        for op, (name, colour, marker) in OPS.items():
            rows = frame[frame["op"] == op]
            axis.scatter(rows[key], heights[rows["matrix"]], s=20, color=colour, marker=marker, label=name, alpha=0.85)
        axis.axvline(bar, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_title(label, fontsize=9.5)
        axis.set_yticks(heights, order if axis is axes[0] else [], fontsize=8)
        axis.grid(visible=True, axis="both")
        if key == "spearman":
            axis.set_xlim(right=1.005)
        else:
            axis.set_xlim(left=0)
    save(drawn, stem, title=title, legend=True, loc="outside lower left", columns=2, fontsize=9)


@styled
def draw_spy(pattern: "Pattern", stem: Path, *, rows_step: int, cols_step: int, title: str) -> None:
    """Draw a spy plot, counts of nonzeros per cell, with the boundaries of tiles of rows_step x cols_step."""
    height, width = pattern.shape
    cells = max(1, -(-max(height, width) // CELLS))
    counts = np.zeros((-(-height // cells), -(-width // cells)))
    np.add.at(counts, (pattern.row_ids() // cells, pattern.indices // cells), 1)
    tall = float(np.clip(4.6 * height / max(1, width), 1.6, 6.4))
    drawn, (axes,) = figure(5.2, tall + 0.6)
    shown = np.ma.masked_equal(counts, 0)
    axes.imshow(shown, extent=(0, width, height, 0), aspect="auto", interpolation="nearest", cmap="Blues",
                norm=LogNorm(vmin=0.3, vmax=max(1.0, float(counts.max()))))
    drawn_rows, drawn_cols = _boundaries(height, rows_step), _boundaries(width, cols_step)
    axes.hlines(drawn_rows, 0, width, color="#b5443c", linewidth=0.5, alpha=0.8)
    axes.vlines(drawn_cols, 0, height, color="#b5443c", linewidth=0.5, alpha=0.8)
    axes.grid(visible=False)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_title(title, fontsize=9, parse_math=False)  # a file's name may hold dollars
    axes.set_xlabel(f"tiles of {min(rows_step, height)} rows x {min(cols_step, width)} columns"
                    + ("" if len(drawn_rows) or height <= rows_step else "; rows too fine to draw"))
    save(drawn, stem)


def _boundaries(extent: int, step: int) -> np.ndarray:
    found = np.arange(step, extent, step)
    return found if len(found) <= LINES else found[:0]
