"""The two levels of the simulator, matrix by matrix."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.report.figures import figure, save, styled

__all__ = ["draw_levels"]

OPS: Mapping[str, tuple[str, str, str]] = {"spmm": ("SpMM", "#b5443c", "o"), "sddmm": ("SDDMM", "#5f7fa8", "D")}
PANELS = (
    ("error", "median |log(T1 / T0)|", 0.15), ("spearman", "rank correlation of the times", 0.85),
    ("traffic_worst", "greatest difference of DRAM lines", 0.10),
)


@styled
def draw_levels(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw errors in time, rank correlations and differences in traffic, with the bars that were set for them.

    Args:
        frame: per_matrix.parquet of `validate_simulator`.
    """
    order = frame.groupby("matrix")["error"].max().sort_values().index
    places = pd.Series(np.arange(len(order)), index=order)
    drawn, axes = figure(9.6, 1.3 + 0.21 * len(order), columns=len(PANELS))
    for axis, (key, label, bar) in zip(axes, PANELS, strict=True):
        for op, (name, colour, marker) in OPS.items():
            rows = frame[frame["op"] == op]
            axis.scatter(rows[key], places[rows["matrix"]], s=20, color=colour, marker=marker, label=name, alpha=0.85)
        axis.axvline(bar, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_title(label, fontsize=9.5)
        axis.set_yticks(places, order if axis is axes[0] else [], fontsize=8)
        axis.grid(visible=True, axis="both")
        if key == "spearman":
            axis.set_xlim(right=1.005)
        else:
            axis.set_xlim(left=0)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=11)
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=9)
    save(drawn, stem)
