"""Whole tiles by padding, by splitting, and tiles of any extent: CoRa's Figure 14."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.figures import figure, save, styled
from sparloom.report.ragged_names import data_title
from sparloom.report.ragged_turns import compared_cases, turn_metrics, turn_ratios

__all__ = ["draw_splitting", "splitting_frame", "splitting_metrics", "splitting_tables"]

ARMS: Mapping[str, tuple[str, str]] = {
    "padded": ("padded (NoSplit)", "#c8c8c8"), "split": ("split", "#8fa9c9"), "hfused": ("split, at once", "#5f7fa8"),
    "exact": ("tiles of any extent (sparloom)", "#b5443c")}
OPERATORS: Mapping[str, str] = {"qkt": "QKT", "attnv": "AttnV"}


def splitting_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Seconds over those with padding, medians over turns: a row for each operator, data set and size of batch.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    rows = {(operator, data, size): {arm: float(np.median(turn_ratios(case, "padded", arm))) for arm in ARMS}
            for data, size, operator, case in compared_cases(frame, "splitting")}
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index = pd.MultiIndex.from_tuples(rows, names=["operator", "data", "size"])
    return found


def splitting_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios.

    Returns:
        `splitting/<operator>/<data>_<size>/<arm>_over_padded`: how many times as fast an arm is as padding to whole
        tiles, and `exact_over_split`, `hfused_over_split`; medians over turns with `_p10` and `_p90`.
    """
    found: dict[str, float] = {}
    for data, size, operator, case in compared_cases(frame, "splitting"):
        for fast, slow in (("split", "padded"), ("hfused", "padded"), ("exact", "padded"), ("hfused", "split"),
                           ("exact", "split")):
            found |= turn_metrics(f"splitting/{operator}/{data}_{size}/{fast}_over_{slow}",
                                  turn_ratios(case, fast, slow))
    return found


def splitting_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Lay out ratios."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title="products of attention: seconds over those with padding to whole tiles")
    for column in ("", "data", "size", *(label for label, _ in ARMS.values())):
        table.add_column(column, justify="left" if column in ("", "data") else "right")
    for (operator, data, size), row in splitting_frame(frame).iterrows():
        table.add_row(OPERATORS[operator], data_title(data), str(size), *(f"{row[arm]:.2f}" for arm in ARMS))
    yield table


@styled
def draw_splitting(frame: pd.DataFrame, stem: Path) -> None:
    """Draw seconds over those with padding, a panel for each operator (Figure 14)."""
    found = splitting_frame(frame)
    operators = list(dict.fromkeys(found.index.get_level_values("operator")))
    drawn, panels = figure(1.4 + 3.6 * len(operators), 3.4, columns=len(operators))
    for axes, operator in zip(panels, operators, strict=True):
        shown = found.xs(operator, level="operator")
        places, width = np.arange(len(shown)), 0.84 / len(ARMS)
        for number, (arm, (label, colour)) in enumerate(ARMS.items()):
            at = places + (number - (len(ARMS) - 1) / 2) * width
            axes.bar(at, shown[arm], 0.92 * width, color=colour, label=label)
        axes.axhline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xticks(places, [f"{data_title(data)}\n{size}" for data, size in shown.index], fontsize=8)
        axes.set_title(OPERATORS[operator])
    panels[0].set_ylabel("time over padded")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    save(drawn, stem)
