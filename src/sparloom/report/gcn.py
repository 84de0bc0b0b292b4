"""Training times of graph convolutional networks: speedups, a table, and a figure after the paper's Figure 12."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullLocator
from rich.table import Table

from sparloom.measure import bootstrap_interval, geomean
from sparloom.report.figures import figure, save, styled

__all__ = ["draw_gcn", "gcn_metrics", "gcn_table"]

PAPER: Mapping[int, float] = {32: 3.84, 64: 2.33, 128: 1.34}
"""Tile fusion over PyTorch Geometric by width, Loop Fusion in Matrix Multiplications with Sparse Dependence, §6.1."""

RATIOS = {
    "speedup_over_pyg": ("pyg", "sparloom", "seconds"),
    "step_speedup_over_pyg": ("pyg", "sparloom", "step_seconds"),
    "speedup_over_unfused": ("unfused", "sparloom", "seconds"),
    "transform_first_over_pyg": ("pyg", "transform_first", "seconds"),
    "transform_first_step_over_pyg": ("pyg", "transform_first", "step_seconds"),
    "unfused_over_pyg": ("pyg", "unfused", "seconds"),
}
LABELS = {
    "speedup_over_pyg": "sparloom over PyTorch Geometric, all included",
    "step_speedup_over_pyg": "without the first step",
    "layer_speedup_over_pyg": "and without ReLU, loss and Adam",
    "transform_first_over_pyg": "transforming first, all included",
    "transform_first_step_over_pyg": "without the first step",
    "unfused_over_pyg": "own layers, nothing fused",
    "speedup_over_unfused": "sparloom over own, nothing fused",
}
METHODS = {"pyg": "PyTorch Geometric", "sparloom": "sparloom"}
COLOURS = {"pyg": "#9a9a9a", "sparloom": "#b5443c"}


def gcn_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce training times to speedups.

    Args:
        frame: per_matrix.parquet of `bench_gcn`: a row for each matrix, width and method.
        seed: of the bootstrap over matrices.

    Returns:
        By width, `<width>/...`: `graphs`; geometric means over graphs with their 95 % bounds `_low` and `_high`, and
        the least, `_min`: `speedup_over_pyg` of the whole training, `step_speedup_over_pyg` without the first step,
        which holds all preparation, `layer_speedup_over_pyg` besides without what is not in the layers,
        `speedup_over_unfused`, and likewise with the paper's order of products, `transform_first_...`, and of unfused
        layers; medians over graphs of the share of a step that is not in the layers, `rest_share_pyg` and
        `rest_share_sparloom`, and of the share of the training that preparation takes, `preparation_share`.
        `loss_difference_max`, over all cases, is between the final losses of both, and behind it the name of another
        own method; rounding in float32 grows in a training, see `loss_error_metrics`.
    """
    found: dict[str, float] = {}
    for width, rows in frame.groupby("width"):
        cases = rows.pivot(index="matrix", columns="method", values=["seconds", "step_seconds", "first_seconds"])
        rest = rows.groupby("matrix")["rest_seconds"].first()
        ratios = {key: cases[clock][slow] / cases[clock][fast] for key, (slow, fast, clock) in RATIOS.items()}
        inside = {name: (cases["step_seconds"][name] - rest).clip(lower=0) for name in ("pyg", "sparloom")}
        own = inside["sparloom"] > 0
        ratios["layer_speedup_over_pyg"] = (inside["pyg"] / inside["sparloom"].where(own)).dropna()
        found[f"{width}/graphs"] = len(cases)
        for key, values in ratios.items():
            if values.empty:
                continue
            found[f"{width}/{key}"] = geomean(values.to_numpy())
            low, high = bootstrap_interval(values.to_numpy(), seed=seed)
            found |= {f"{width}/{key}_low": low, f"{width}/{key}_high": high, f"{width}/{key}_min": float(values.min())}
        for name in ("pyg", "sparloom"):
            found[f"{width}/rest_share_{name}"] = float((rest / cases["step_seconds"][name]).median())
        prepared = cases["first_seconds"]["sparloom"] - cases["step_seconds"]["sparloom"]
        found[f"{width}/preparation_share"] = float((prepared / cases["seconds"]["sparloom"]).median())
    losses = frame.pivot(index=["matrix", "width"], columns="method", values="loss")
    largest = losses.sub(losses["pyg"], axis=0).abs().max()
    found["loss_difference_max"] = float(largest["sparloom"])
    for name in ("transform_first", "unfused"):
        found[f"loss_difference_max_{name}"] = float(largest[name])
    return found


def gcn_table(metrics: Mapping[str, float]) -> Table:
    """Lay out speedups by width beside the paper's."""
    widths = sorted(int(key.partition("/")[0]) for key in metrics if key.endswith("/graphs"))
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title=f"GCN training, {int(metrics[f'{widths[0]}/graphs'])} graphs: times as fast")
    table.add_column("", no_wrap=True)
    for width in widths:
        table.add_column(f"width {width}", justify="right", no_wrap=True)
    for key, label in LABELS.items():
        table.add_row(label, *(_bounded(metrics, f"{width}/{key}") for width in widths))
    table.add_row("least of all graphs", *(f"{metrics[f'{width}/speedup_over_pyg_min']:.2f}" for width in widths))
    table.add_row("the paper, 14 graphs, 1 node of Ice Lake", *(
        f"{PAPER[width]:.2f}" if width in PAPER else "" for width in widths))
    for name, label in METHODS.items():
        shares = [metrics[f"{width}/rest_share_{name}"] for width in widths]
        table.add_row(f"not in the layers, {label}", *(f"{share:.0%}" for share in shares))
    return table


@styled
def draw_gcn(frame: pd.DataFrame, stem: Path) -> None:
    """Draw seconds of the whole training by graph, a panel for each width; on the right how many times as fast."""
    widths = sorted(frame["width"].unique())
    order = frame.drop_duplicates("matrix").sort_values("edges")["matrix"].tolist()
    drawn, panels = figure(4.6 * len(widths), 0.24 * len(order) + 1.6, columns=len(widths))
    places = np.arange(len(order))
    for width, panel in zip(widths, panels, strict=True):
        seconds = frame[frame["width"] == width].pivot(index="matrix", columns="method", values="seconds").loc[order]
        panel.hlines(places, seconds["sparloom"], seconds["pyg"], color="#d0d0d0", linewidth=2)
        for name, label in METHODS.items():
            panel.plot(seconds[name], places, "o", color=COLOURS[name], markersize=5, label=label)
        for place, ratio in zip(places, seconds["pyg"] / seconds["sparloom"], strict=True):
            panel.annotate(f"{ratio:.1f}×", (seconds["pyg"].iloc[place], place), xytext=(6, 0), fontsize=7,
                           textcoords="offset points", va="center")
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_locator(NullLocator())
        panel.grid(axis="y", visible=False)
        panel.grid(axis="x", visible=True)
        panel.set_yticks(places, [name.partition("/")[2] for name in order] if panel is panels[0] else [], fontsize=7)
        panel.set_xlabel("seconds of the training")
        panel.set_title(f"{width} features, hidden channels, classes")
        panel.margins(x=0.12)
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(drawn, stem)


def _bounded(metrics: Mapping[str, float], key: str) -> str:
    if key not in metrics:
        return ""
    return f"{metrics[key]:.2f} ({metrics[f'{key}_low']:.2f}–{metrics[f'{key}_high']:.2f})"
