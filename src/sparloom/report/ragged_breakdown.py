"""The encoder layer kernel by kernel, beside PyTorch's operators: CoRa's Figures 13 and 24."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.figures import figure, save, styled
from sparloom.report.ragged_names import data_title
from sparloom.report.ragged_turns import compared_cases, turn_metrics, turn_ratios

__all__ = ["PAPER_RACE", "breakdown_frame", "breakdown_metrics", "breakdown_tables", "draw_breakdown"]

METHODS: Mapping[str, tuple[str, str]] = {"torch": ("PyTorch, packed", "#5f7fa8"), "sparloom": ("sparloom", "#b5443c")}
OPERATORS: Mapping[str, str] = {
    "qkv": "Proj1", "attention": "QKT, Softmax,\nAttnV", "projection": "Proj2", "norm1": "Norm 1", "ff1": "FF1",
    "ff2": "FF2", "norm2": "Norm 2"}
PAPER_RACE: Mapping[str, Mapping[str, float]] = {  # ms on a V100, RACE, 128 sequences; Table 10
    "FT-Eff": {"qkv": 5.4 + 1.21, "attention": 2.64 + 4.08 + 2.79, "projection": 0.29 + 1.82, "norm1": 0.38,
               "ff1": 6.92 + 0.98, "ff2": 7.1, "norm2": 0.38},
    "CoRa": {"qkv": 6.2, "attention": 2.12 + 1.93 + 2.44, "projection": 2.31, "norm1": 0.31, "ff1": 8.06, "ff2": 8.33,
             "norm2": 0.31}}
"""FT-Eff has bias and residual of the last products in its norms."""


def breakdown_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds, medians: a row for each data set, size of batch and operator, a column for each method.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    rows = frame[frame["part"] == "breakdown"]
    seconds = rows.pivot_table(index=["data", "size", "operator"], columns="method", values="median", sort=False)
    return 1e3 * seconds[list(METHODS)]


def breakdown_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios and shares.

    Returns:
        By `breakdown/<data>_<size>/`: `<operator>_over_torch`, how many times as fast our kernel is, the median over
        turns with `_p10` and `_p90`; `<operator>_share` of the sum of our kernels; `total_over_torch`, of the sums of
        medians; `total_seconds`.
    """
    found: dict[str, float] = {}
    total = breakdown_frame(frame).groupby(["data", "size"], sort=False).sum() / 1e3
    for data, size, operator, case in compared_cases(frame, "breakdown"):
        key, whole = f"breakdown/{data}_{size}", total.loc[(data, size)]
        found |= turn_metrics(f"{key}/{operator}_over_torch", turn_ratios(case, "sparloom", "torch"))
        found[f"{key}/{operator}_share"] = float(case.loc["sparloom", "median"] / whole["sparloom"])
        found |= {f"{key}/total_over_torch": float(whole["torch"] / whole["sparloom"]),
                  f"{key}/total_seconds": float(whole["sparloom"])}
    return found


def breakdown_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Lay out milliseconds and ratios."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title="an encoder layer, kernel by kernel: milliseconds")
    for column in ("data", "size", "", *(label for label, _ in METHODS.values()), "times as fast"):
        table.add_column(column, justify="left" if column in ("data", "") else "right")
    for (data, size, operator), row in breakdown_frame(frame).iterrows():
        seconds = [f"{row[name]:.2f}" for name in METHODS]
        table.add_row(data_title(data), str(size), OPERATORS[operator].replace("\n", " "), *seconds,
                      f"{row['torch'] / row['sparloom']:.2f}")
    yield table


@styled
def draw_breakdown(frame: pd.DataFrame, stem: Path) -> None:
    """Draw milliseconds of each kernel, a panel for each batch (Figures 13 and 24)."""
    found = breakdown_frame(frame)
    cases = list(dict.fromkeys(place[:2] for place in found.index))
    drawn, panels = figure(1.4 + 5.0 * len(cases), 3.6, columns=len(cases))
    for axes, case in zip(panels, cases, strict=True):
        shown = found.loc[case]
        places, width = np.arange(len(shown)), 0.84 / len(METHODS)
        for number, (method, (label, colour)) in enumerate(METHODS.items()):
            at = places + (number - (len(METHODS) - 1) / 2) * width
            axes.bar(at, shown[method], 0.92 * width, color=colour, label=label)
        axes.set_xticks(places, [OPERATORS[operator] for operator in shown.index], fontsize=8)
        axes.set_title(f"{data_title(case[0])}, {case[1]} sequences")
    panels[0].set_ylabel("milliseconds")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    save(drawn, stem)
