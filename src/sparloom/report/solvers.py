"""Reduce benchmarks of GCN training (the paper's Figure 12), of mini-batches, and of Jacobi's method (Figure 13)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import geomean
from sparloom.report.figures import COLOURS, draw_lines, figure, ranked, save, set_ticks, styled
from sparloom.report.runs import grouped_bounds, method_ratios, ratio_bounds

RATIOS = {
    "speedup_over_pyg": ("pyg", "sparloom", "seconds"),
    "step_speedup_over_pyg": ("pyg", "sparloom", "step_seconds"),
    "speedup_over_unfused": ("unfused", "sparloom", "seconds"),
    "transform_first_over_pyg": ("pyg", "transform_first", "seconds"),
    "transform_first_step_over_pyg": ("pyg", "transform_first", "step_seconds"),
    "unfused_over_pyg": ("pyg", "unfused", "seconds"),
}
METHODS = {"pyg": "PyTorch Geometric", "sparloom": "sparloom"}
GCN_COLOURS = {"pyg": "#9a9a9a", "sparloom": "#b5443c"}
BATCHES = {"sampled": "sampled batches", "small": "joined small graphs"}
PREFIXES: Mapping[str, str] = {"definite": "", "pattern": "pattern/", "anchors": "anchors/"}
PARTS: Mapping[str, str] = {
    "definite": "positive definite", "pattern": "meshes, values of a Laplacian", "anchors": "anchors"}
PEERS = ("unfused", "unfused_renumbered", "separated", "mkl", "torch", "scipy")


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
        own method; rounding in float32 grows in a training.
    """
    found: dict[str, float] = {}
    for width, rows in frame.groupby("width"):
        cases = rows.pivot(index="matrix", columns="method", values=["seconds", "step_seconds", "first_seconds"])
        rest = rows.groupby("matrix")["rest_seconds"].first()
        ratios = {key: cases[clock][slow] / cases[clock][fast] for key, (slow, fast, clock) in RATIOS.items()}
        inside = {name: (cases["step_seconds"][name] - rest).clip(lower=0) for name in ("pyg", "sparloom")}
        timed = (inside["pyg"] > 0) & (inside["sparloom"] > 0)  # not where noise exceeds the time of the layers
        ratios["layer_speedup_over_pyg"] = (inside["pyg"] / inside["sparloom"])[timed]
        found[f"{width}/graphs"] = len(cases)
        for key, values in ratios.items():
            found |= ratio_bounds(f"{width}/{key}", values, seed=seed)
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


@styled
def draw_gcn(frame: pd.DataFrame, stem: Path) -> None:
    """Draw seconds of the whole training by graph, a panel per width, and speedups on the right."""
    widths = sorted(frame["width"].unique())
    order = frame.drop_duplicates("matrix").sort_values("edges")["matrix"].tolist()
    drawn, panels = figure(3.3 * len(widths) + 1.2, 0.24 * len(order) + 1.6, columns=len(widths))
    heights = np.arange(len(order))
    for width, panel in zip(widths, panels, strict=True):
        seconds = frame[frame["width"] == width].pivot(index="matrix", columns="method", values="seconds").loc[order]
        panel.hlines(heights, seconds["sparloom"], seconds["pyg"], color="#d0d0d0", linewidth=2)
        for name, label in METHODS.items():
            panel.plot(seconds[name], heights, "o", color=GCN_COLOURS[name], markersize=5, label=label)
        for height, ratio in zip(heights, seconds["pyg"] / seconds["sparloom"], strict=True):
            panel.annotate(f"{ratio:.1f}×", (seconds["pyg"].iloc[height], height), xytext=(6, 0), fontsize=8,
                           textcoords="offset points", va="center")
        panel.set_xscale("log")
        set_ticks(panel.xaxis, [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)])
        panel.grid(axis="y", visible=False)
        panel.grid(axis="x", visible=True)
        panel.set_yticks(heights, [name.partition("/")[2] for name in order] if panel is panels[0] else [], fontsize=8)
        panel.set(xlabel="seconds of the training", title=f"{width} features, channels, classes")
        panel.margins(x=0.16)
    save(drawn, stem, legend=True, columns=2, fontsize=10)


def minibatch_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce times of training steps on mini-batches to speedups.

    Args:
        frame: per_matrix.parquet of `bench_minibatch`: a row for each kind of batch, layer and method.
        seed: of the bootstrap over graphs.

    Returns:
        `<kind>/cases`, for "sampled" batches and "small" graphs that are joined; `<kind>/<ratio>` of all layers and
        `<kind>/<layer>/<ratio>`: geometric means over cases, with their 95 % bounds over graphs `_low` and `_high`, and
        the least, `_min`. Ratios: `over_pyg`, steps with edge_index; `over_best`, the faster of edge_index and a CSR
        tensor, whose conversion is not counted; `end_to_end`, as `over_pyg` with the time of sampling on both sides.
    """
    found: dict[str, float] = {}
    keys = ["kind", "data", "way", "size", "layer"]
    seconds = frame.pivot(index=keys, columns="method", values="step_seconds")
    sampling = frame.groupby(keys)["sample_seconds"].first()
    peers = seconds.drop(columns="sparloom")
    ratios = {"over_pyg": seconds["pyg"] / seconds["sparloom"],
              "over_best": peers.min(axis=1) / seconds["sparloom"],
              "end_to_end": (seconds["pyg"] + sampling) / (seconds["sparloom"] + sampling)}
    for kind in [kind for kind in BATCHES if kind in seconds.index.get_level_values("kind")]:
        found[f"{kind}/cases"] = len(seconds.loc[kind])
        for name, ratio in ratios.items():
            of_kind = ratio.loc[[kind]]
            found |= grouped_bounds(f"{kind}/{name}", of_kind, level="data", seed=seed)
            for layer, of_layer in of_kind.groupby(level="layer"):
                found |= grouped_bounds(f"{kind}/{layer}/{name}", of_layer, level="data", seed=seed)
    return found


def jacobi_ratios(frame: pd.DataFrame, fast: str, slow: str, column: str = "seconds") -> pd.Series:
    """Divide the seconds of `slow` by those of `fast`, by part and matrix, where both were timed.

    Args:
        frame: per_matrix.parquet of `bench_jacobi`.
        column: "seconds" of two steps or "solve_seconds".
    """
    return method_ratios(frame, fast, slow, case=("part", "matrix"), column=column)


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
            found |= ratio_bounds(f"{prefix}speedup_over_{peer}", jacobi_ratios(rows, "auto", peer), seed=seed)
        for name in ("fused", "fused_natural"):
            speedups = jacobi_ratios(rows, name, "unfused")
            found |= ratio_bounds(f"{prefix}{name}_speedup_over_unfused", speedups, seed=seed)
        both = pd.concat([jacobi_ratios(rows, "auto", peer) for peer in PEERS[:2]], axis=1)
        found |= ratio_bounds(f"{prefix}speedup_over_best_unfused", both.min(axis=1), seed=seed)
        solves = jacobi_ratios(rows, "auto", "unfused", "solve_seconds")
        found |= ratio_bounds(f"{prefix}solve_speedup_over_unfused", solves, seed=seed)
        auto = rows[rows["method"] == "auto"]
        found |= {f"{prefix}fused_share": float((~auto["same"].astype(bool)).mean()),
                  f"{prefix}steps_median": float(auto["steps_most"].median()),
                  f"{prefix}converged": float(auto["converged"].mean() / auto["columns"].iloc[0])}
    return found


def draw_jacobi(frame: pd.DataFrame, stem: Path) -> None:
    """Draw sorted speedups over our unfused solver, a panel per part (the paper's Figure 13)."""
    auto, always = (jacobi_ratios(frame, method, "unfused") for method in ("auto", "fused"))
    panels = {}
    for part in [part for part in PARTS if part in set(frame["part"])]:
        order = auto[part].sort_values().index
        panels[f"{PARTS[part]}: {geomean(auto[part].to_numpy()):.2f} on average"] = [
            replace(ranked(always[part][order], "always fused", COLOURS["trees"]), style="x"),
            replace(ranked(auto[part][order], "fused or not (auto)", COLOURS["cognate"]), style="o")]
    draw_lines(panels, stem, x="matrices, by speedup", y="speedup over own unfused", at=1, columns=2)
