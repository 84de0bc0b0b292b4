"""Published effects and ours, cell beside cell, coloured by whether their signs agree."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.patches import Patch, Rectangle

from sparloom.report.figures import figure, save, styled

__all__ = ["draw_signs"]

VERDICTS: Mapping[str, tuple[str, str]] = {
    "agree": ("#d7e6d3", "same sign, or both within 5 %"), "tie": ("#f3eedd", "one within 5 %, the other not"),
    "opposite": ("#efc0b8", "opposite signs"), "base": ("#ffffff", "base of the others"),
}
FORMATS: Mapping[str, str] = {"barrier": "{:+.1f}", "bypass": "{:+.1f}", "gain": "{:.2f}", "tiles": "{:.2f}"}


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
    axes.set_xticks([place + 0.5 for place in range(len(columns))],
                    [column.replace(" x ", " x\n") for column in columns], fontsize=9)
    axes.set_yticks([place + 0.5 for place in range(len(lines))], lines, fontsize=9)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title(title)
    shown = [Patch(facecolor=colour, edgecolor="#c8c8c8", label=label) for verdict, (colour, label) in VERDICTS.items()
             if (rows["verdict"] == verdict).any()]
    drawn.legend(handles=shown, loc="outside lower left", ncols=len(shown), fontsize=8, frameon=False)
    save(drawn, stem)
