"""What raggedness costs an operator where nothing is ragged: CoRa's Figure 23."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.figures import figure, save, styled
from sparloom.report.ragged_turns import compared_cases, turn_metrics, turn_ratios

__all__ = ["draw_hoisting", "hoisting_frame", "hoisting_metrics", "hoisting_tables"]

ARMS: Mapping[str, tuple[str, str]] = {
    "dense": ("dense", "#c8c8c8"), "vloops": ("+ variable loops", "#8fa9c9"), "vdims": ("+ ragged storage", "#d9a441"),
    "hoisted": ("+ load hoisting", "#b5443c")}
OPERATORS: Mapping[str, str] = {
    "proj1": "Proj1", "qkt": "QKT", "qkt_fused": "QKT, three\nloops fused", "softmax": "Softmax", "attnv": "AttnV",
    "proj2": "Proj2"}


def hoisting_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Seconds over those of the dense operator, medians over turns: a row for each operator, a column for each form.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    return pd.DataFrame({
        operator: {arm: float(np.median(turn_ratios(case, "dense", arm))) for arm in ARMS}
        for _, _, operator, case in compared_cases(frame, "hoisting")}).T


def hoisting_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios, medians over turns with `_p10` and `_p90`.

    Returns:
        By `hoisting/<operator>/`: `<form>_slowdown`, seconds over those of the dense operator; `hoisted_over_vdims`,
        how many times as fast hoisting makes it; `dense_seconds`.
    """
    found: dict[str, float] = {}
    for _, _, operator, case in compared_cases(frame, "hoisting"):
        key = f"hoisting/{operator}"
        found[f"{key}/dense_seconds"] = float(case.loc["dense", "median"])
        for arm in ARMS:
            if arm != "dense":
                found |= turn_metrics(f"{key}/{arm}_slowdown", turn_ratios(case, "dense", arm))
        found |= turn_metrics(f"{key}/hoisted_over_vdims", turn_ratios(case, "hoisted", "vdims"))
    return found


def hoisting_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Lay out ratios."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title="sequences of one length: seconds over those of the dense operator")
    for column in ("", *(label for label, _ in ARMS.values())):
        table.add_column(column, justify="right" if column else "left")
    for operator, row in hoisting_frame(frame).iterrows():
        table.add_row(OPERATORS[str(operator)].replace("\n", " "), *(f"{row[arm]:.2f}" for arm in ARMS))
    yield table


@styled
def draw_hoisting(frame: pd.DataFrame, stem: Path) -> None:
    """Draw seconds over those of the dense operator (Figure 23)."""
    found = hoisting_frame(frame)
    drawn, (axes,) = figure(7.6, 3.4)
    places, width = np.arange(len(found)), 0.84 / len(ARMS)
    for number, (arm, (label, colour)) in enumerate(ARMS.items()):
        at = places + (number - (len(ARMS) - 1) / 2) * width
        axes.bar(at, found[arm], 0.92 * width, color=colour, label=label)
    axes.axhline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    top = min(2.2, 1.15 * float(found.max().max()))
    for place, arm in ((place, arm) for place, row in zip(places, found.to_dict("records"), strict=True)
                       for arm in ARMS if row[arm] > top):
        at = place + (list(ARMS).index(arm) - (len(ARMS) - 1) / 2) * width
        axes.annotate(f"{found[arm].iloc[place]:.1f}", (at, top), ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, top)
    axes.set_xticks(places, [OPERATORS[operator] for operator in found.index])
    axes.set_ylabel("time over dense")
    axes.set_title("All sequences of one length", pad=14)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    save(drawn, stem)
