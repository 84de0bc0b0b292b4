"""Figures of a bench of tile fusion, after Figures 2 and 4 to 10 of the paper; each as PNG and SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparloom.measure import geomean
from sparloom.report.figures import figure, logarithmic, op_title, save, styled, width_bars
from sparloom.report.fusion_metrics import ANCHORS, ratios
from sparloom.report.fusion_tables import LABELS

__all__ = [
    "draw_amortisation", "draw_fused_methods", "draw_fusion", "draw_gain", "draw_memory_time", "draw_rates",
    "draw_reuse", "draw_scaling", "draw_steps",
]

COLOURS: Mapping[str, str] = {
    "auto": "#b5443c", "fused": "#d9a441", "local": "#c98a6b", "unfused": "#5f7fa8", "separated": "#8fa9c9",
    "mkl": "#7aa974", "torch": "#9a9a9a", "scipy": "#c8c8c8", "atomic": "#8a6fa8", "overlapped": "#6f9aa8",
    "gemv": "#7d7d4d", "blas_gemv": "#a3a35f", "listing": "#4d4d4d", "coarse": "#5f7fa8", "sequential": "#2b2b2b",
}
NAMES: Mapping[str, str] = {"auto": "fuse=auto", "coarse": "step one", "sequential": "unfused, one thread", **LABELS}
COMPARED = ("auto", "fused", "unfused", "mkl", "torch")
FUSED = ("auto", "fused", "local", "overlapped", "atomic", "gemv", "blas_gemv", "listing")
WHOLE_WIDTH = 7.2  # inches


def draw_fusion(frame: pd.DataFrame, folder: Path) -> None:
    """Draw every figure that the run has rows for.

    Args:
        frame: per_matrix.parquet of `bench_fusion`.
    """
    threads = int(frame["threads"].max())
    whole = frame[(frame["threads"] == threads) & frame["seconds"].notna()]
    for (part, op), rows in whole.groupby(["part", "op"], sort=False):
        stem = folder / f"{part}_{op}"
        draw_rates(rows, stem.with_name(f"{stem.name}_rates"), title=f"{op_title(op)}, {_part(rows)}")
        draw_fused_methods(rows, stem.with_name(f"{stem.name}_fused_methods"), title=f"{op_title(op)}, {_part(rows)}")
        draw_amortisation(rows, stem.with_name(f"{stem.name}_amortisation"), title=f"{op_title(op)}, {_part(rows)}")
    for part, rows in whole[whole["op"] == "gemm_spmm"].groupby("part", sort=False):
        title = f"{op_title('gemm_spmm')}, {_part(rows)}"
        draw_gain(rows, folder / f"{part}_gain", title=title)
        if "coarse" in set(rows["method"]):
            draw_steps(rows, folder / f"{part}_steps", title=title)
            draw_reuse(rows, folder / f"{part}_reuse", title=title)
            draw_memory_time(rows, folder / f"{part}_memory_time", title=title)
    for part, rows in frame[frame["seconds"].notna()].groupby("part", sort=False):
        if rows["threads"].nunique() > 1:
            draw_scaling(rows, folder / f"{part}_scaling", title=_part(rows))


@styled
def draw_rates(frame: pd.DataFrame, stem: Path, *, title: str, methods: Sequence[str] = COMPARED) -> None:
    """Draw GFLOP/s on every matrix, sorted by the rate of "auto", a panel for each width (Figures 4 and 10)."""
    widths, drawn, axes = _panels(frame["width"])
    for axis, width in zip(axes, widths, strict=False):
        rates = _rates(frame[frame["width"] == width])
        order = rates["auto"].sort_values().index
        for method in (method for method in methods[::-1] if method in rates):
            _curve(axis, rates[method].reindex(order), method)
        axis.set_title(f"{width} columns")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("matrices, by rate of fuse=auto")
        if len(order) <= len(ANCHORS) + 2:
            axis.set_xticks(range(1, len(order) + 1), order, rotation=60, ha="right", fontsize=8)
            axis.set_xlabel("")
    axes[0].set_ylabel("GFLOP/s")
    _finish(drawn, axes[0], stem, title)


@styled
def draw_fused_methods(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw geometric mean speedups over each way to fuse, on the matrices that have it (Figure 5)."""
    widths = sorted(frame["width"].unique())
    known = {(method, width): ratios(frame[frame["width"] == width], "auto", method).to_numpy()
             for method in FUSED[1:] for width in widths}
    shown = [method for method in FUSED[1:] if any(known[method, width].size for width in widths)]
    drawn, (axes,) = figure(WHOLE_WIDTH, 3.4)
    width_bars(axes, {key: values for key, values in known.items() if key[0] in shown}, COLOURS)
    logarithmic(axes)
    labels = [NAMES[method].replace(", ", ",\n").replace(" as ", "\nas ").replace(" compiler", "\ncompiler")
              for method in shown]
    axes.set_xticks(range(len(shown)), labels, fontsize=8)
    axes.set_ylabel("times as fast is fuse=auto")
    axes.set_title(title)
    save(drawn, stem)


@styled
def draw_gain(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw which share of the time even threads would save, matrix by matrix, a panel for each width (Figure 7)."""
    widths, drawn, axes = _panels(frame["width"])
    for axis, width in zip(axes, widths, strict=False):
        rows = frame[(frame["width"] == width) & frame["gain_seconds"].notna()]
        share = (rows["gain_seconds"] / rows["seconds"]).groupby([rows["matrix"], rows["method"]]).first().unstack()
        order = share["unfused"].sort_values().index
        for method in (method for method in ("unfused", "fused", "auto") if method in share):
            _curve(axis, 100 * share[method].reindex(order), method)
        axis.set_title(f"{width} columns")
        axis.set_xlabel("matrices, by gain of unfused")
    axes[0].set_ylabel("potential gain, % of the time")
    _finish(drawn, axes[0], stem, title)


@styled
def draw_steps(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw what step one of the scheduler brings over one thread, and step two on top of it (Figure 8)."""
    first, both = ratios(frame, "coarse", "sequential"), ratios(frame, "fused", "sequential")
    order = both.sort_values().index
    drawn, (axes,) = figure(WHOLE_WIDTH, 3.2)
    _curve(axes, first.reindex(order), "coarse")
    _curve(axes, both.reindex(order), "fused")
    axes.axhline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlabel("matrices and widths, by speedup of both steps")
    axes.set_ylabel("times as fast as one thread")
    _finish(drawn, axes, stem, title)


@styled
def draw_reuse(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the shares of computation and of rows of D1 that stay in a coarse tile (Figure 2)."""
    rows = frame[frame["reused_flops"].notna()].drop_duplicates("matrix").sort_values("reused_flops")
    drawn, (axes,) = figure(WHOLE_WIDTH, 3.2)
    places = np.arange(1, len(rows) + 1)
    for column, label, colour in (("reused_flops", "computation of both loops", "#b5443c"),
                                  ("kept_rows", "rows of D1 that no other tile reads", "#5f7fa8")):
        values = 100 * rows[column].to_numpy()
        mean = f"{values.mean():.0f} %" if values.size else "unknown"
        axes.plot(places, values, ".-", color=colour, linewidth=0.8, markersize=4, label=f"{label}, mean {mean}")
    axes.set_ylim(0, 100)
    axes.set_xlabel("matrices, by computation")
    axes.set_ylabel("in one tile of 2048 iterations, %")
    _finish(drawn, axes, stem, title)


@styled
def draw_memory_time(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the average time of a memory access, in cycles, counted or simulated (Figure 6)."""
    cycles = frame[frame["access_cycles"].notna()].pivot_table(
        index=["matrix", "width"], columns="method", values="access_cycles")
    order = cycles.get("unfused", pd.Series(dtype=float)).sort_values().index
    drawn, (axes,) = figure(WHOLE_WIDTH, 3.2)
    for method in (method for method in ("unfused", "fused", "auto") if method in cycles):
        _curve(axes, cycles[method].reindex(order), method)
    axes.set_xlabel("matrices, by access time of unfused")
    source = ", ".join(sorted(frame["access_source"].dropna().unique()))
    axes.set_ylabel(f"cycles per access, {source}")
    _finish(drawn, axes, stem, title)


@styled
def draw_amortisation(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw after how many runs the inspector and the decision have paid, where the fused code is faster (§5.2.5)."""
    seconds = frame.pivot_table(index=["matrix", "width"], columns="method", values="seconds")
    drawn, (axes,) = figure(WHOLE_WIDTH, 3.2)
    for method, column, label in (("fused", "build_seconds", "inspector, fused as in the paper"),
                                  ("auto", "decision_seconds", "decision of fuse=auto")):
        if method not in seconds or column not in frame:
            continue
        cost = frame[frame["method"] == method].set_index(["matrix", "width"])[column]
        saved = seconds["unfused"] - seconds[method]
        runs = np.sort((cost / saved)[saved > 0].dropna().to_numpy())
        if runs.size:
            axes.plot(runs, np.arange(1, runs.size + 1) / len(cost), color=COLOURS[method], linewidth=1.3,
                      label=f"{label}: median {np.median(runs):.0f}")
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_xlabel("runs until it has paid")
    axes.set_ylabel("share of matrices and widths")
    _finish(drawn, axes, stem, title)


@styled
def draw_scaling(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw geometric mean rates over the number of threads, for what was timed with each of them (Figure 9)."""
    counts = sorted(frame["threads"].unique())
    rows = frame.assign(rate=frame["flops"] / frame["seconds"] / 1e9)
    table = rows.pivot_table(index=["op", "matrix", "width", "method"], columns="threads", values="rate").dropna()
    ops, drawn, axes = _panels(table.index.get_level_values("op"))
    for axis, op in zip(axes, ops, strict=False):
        known = table[table.index.get_level_values("op") == op]
        for method in (method for method in COMPARED if method in known.index.unique("method")):
            own = known.xs(method, level="method")
            axis.plot(counts, [geomean(own[count].to_numpy()) for count in counts], "o-", color=COLOURS[method],
                      linewidth=1.2, markersize=4, label=NAMES[method])
        axis.set_xticks(counts)
        axis.set_ylim(bottom=0)
        axis.set_title(op_title(op))
        axis.set_xlabel("threads")
    axes[0].set_ylabel("GFLOP/s, geometric mean")
    _finish(drawn, axes[0], stem, title)


def _panels(values: pd.Series | pd.Index) -> tuple[list, Figure, Sequence[Axes]]:
    """Make a panel for each distinct value; one that stays empty if there is none."""
    found = sorted(values.unique())
    return (found, *figure(3.6 * max(1, len(found)), 3.4, columns=max(1, len(found))))


def _part(rows: pd.DataFrame) -> str:
    count = rows["matrix"].nunique()
    return f"{count} real matrices" if rows["part"].iloc[0] == "real" else f"{count} anchors"


def _rates(frame: pd.DataFrame) -> pd.DataFrame:
    """GFLOP/s, matrices x methods."""
    return frame.assign(rate=frame["flops"] / frame["seconds"] / 1e9).pivot(
        index="matrix", columns="method", values="rate")


def _curve(axis: Axes, values: pd.Series, method: str) -> None:
    axis.plot(np.arange(1, len(values) + 1), values.to_numpy(), ".-", color=COLOURS[method], linewidth=0.8,
              markersize=4, label=NAMES[method])


def _finish(drawn: Figure, axes: Axes, stem: Path, title: str) -> None:
    drawn.suptitle(title, x=0.01, ha="left", fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        drawn.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    save(drawn, stem)
