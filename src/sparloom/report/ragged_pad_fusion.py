"""Changes of padding as operators, and within others: CoRa's Figure 12."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.figures import figure, save, styled
from sparloom.report.ragged_names import data_title
from sparloom.report.ragged_turns import compared_cases, turn_metrics, turn_ratios

__all__ = ["draw_pad_fusion", "pad_fusion_frame", "pad_fusion_metrics", "pad_fusion_tables"]

ARMS: Mapping[str, tuple[str, str]] = {
    "separate_loops": ("loops, changes by themselves", "#b0b0b0"),
    "inlined_loops": ("loops, changes inlined", "#6f6f6f"),
    "separate_products": ("products, changes by themselves", "#8fa9c9"),
    "inlined_products": ("products, changes inlined", "#5f7fa8"), "sparloom": ("sparloom, no padding", "#b5443c")}
CHANGES = "changes"


def pad_fusion_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds, medians: a row for each data set and size of batch, a column for each arm.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    rows = frame[frame["part"] == "pad_fusion"]
    seconds = rows.pivot(index=["data", "size"], columns="method", values="median")
    return 1e3 * seconds[[*ARMS, CHANGES]]


def pad_fusion_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios, medians over turns with `_p10` and `_p90`.

    Returns:
        By `pad_fusion/<data>_<size>/`: `inlined_over_separate_products` and `inlined_over_separate_loops`, how many
        times as fast inlining makes the attention; `sparloom_over_inlined_products`; `changes_share`, of the changes
        of padding in the time with them by themselves, products offloaded.
    """
    found: dict[str, float] = {}
    for data, size, _, case in compared_cases(frame, "pad_fusion"):
        key = f"pad_fusion/{data}_{size}"
        for kind in ("products", "loops"):
            found |= turn_metrics(f"{key}/inlined_over_separate_{kind}",
                                  turn_ratios(case, f"inlined_{kind}", f"separate_{kind}"))
        found |= turn_metrics(f"{key}/sparloom_over_inlined_products",
                              turn_ratios(case, "sparloom", "inlined_products"))
        found |= turn_metrics(f"{key}/changes_share", turn_ratios(case, "separate_products", CHANGES))
    return found


def pad_fusion_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Lay out milliseconds."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title="multi-head attention padded to tiles of 64: milliseconds")
    for column in ("data", "size", *(label for label, _ in ARMS.values()), "changes alone"):
        table.add_column(column, justify="left" if column == "data" else "right")
    for (data, size), row in pad_fusion_frame(frame).iterrows():
        table.add_row(data_title(data), str(size), *(f"{row[arm]:.1f}" for arm in (*ARMS, CHANGES)))
    yield table


@styled
def draw_pad_fusion(frame: pd.DataFrame, stem: Path) -> None:
    """Draw milliseconds of the attention (Figure 12)."""
    found = pad_fusion_frame(frame)
    drawn, (axes,) = figure(7.2, 3.4)
    places, width = np.arange(len(found)), 0.84 / len(ARMS)
    for number, (arm, (label, colour)) in enumerate(ARMS.items()):
        at = places + (number - (len(ARMS) - 1) / 2) * width
        axes.bar(at, found[arm], 0.92 * width, color=colour, label=label)
    axes.set_xticks(places, [f"{data_title(data)}, {size}" for data, size in found.index])
    axes.set_ylabel("milliseconds")
    axes.set_title("Multi-head attention")
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    save(drawn, stem)
