"""What a changed constant of the simulator changes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.report.figures import figure, save, styled

__all__ = ["draw_sensitivity"]

OPS: Mapping[str, tuple[str, str, float]] = {"spmm": ("SpMM", "#b5443c", -0.16), "sddmm": ("SDDMM", "#5f7fa8", 0.16)}
PANELS = (("optimum", "optimum over default"), ("tau", "Kendall tau of the orders"), ("kept", "share of optimum kept"))
MARKERS: Mapping[str, str] = {"low value": "<", "high value": ">", "the other choice": "o"}


@styled
def draw_sensitivity(table: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw each number at the low and the high value of every constant, the most telling constant on top.

    Args:
        table: sensitivity.parquet of a run of `spade_sensitivity`.
    """
    changed = table[table["constant"] != "baseline"]
    order = changed.groupby("constant")["tau"].min().sort_values(ascending=False).index
    places = pd.Series(np.arange(len(order)), index=order)
    drawn, axes = figure(9.6, 1.4 + 0.3 * len(order), columns=len(PANELS))
    for axis, (key, label) in zip(axes, PANELS, strict=True):
        for op, (name, colour, shift) in OPS.items():
            rows = changed[changed["op"] == op]
            for constant, values in rows.groupby("constant", sort=False)[key]:
                height = np.full(len(values), places[constant] + shift)
                axis.plot(values, height, color=colour, linewidth=1)
                ends = list(MARKERS.values())[:2] if len(values) == 2 else ["o"] * len(values)
                for end, value in zip(ends, values, strict=True):
                    axis.plot(value, height[0], end, color=colour, markersize=5)
            axis.plot([], [], "-", color=colour, label=name)
            base = table.loc[(table["op"] == op) & (table["constant"] == "baseline"), key]
            if key == "optimum":
                axis.axvline(float(base.iloc[0]), color=colour, linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_title(label, fontsize=9.5)
        axis.set_yticks(places, order if axis is axes[0] else [], fontsize=8)
        axis.grid(visible=True, axis="both")
    for label, end in MARKERS.items():
        axes[0].plot([], [], end, color="#606060", label=label)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=11)
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=5, fontsize=9)
    save(drawn, stem)
