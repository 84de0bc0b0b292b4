"""What building auxiliary tables takes: seconds and kilobytes, beside the paper's."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.figures import figure, save, styled
from sparloom.report.ragged_names import data_title
from sparloom.report.ragged_turns import compared_cases, turn_metrics, turn_ratios

__all__ = ["draw_prelude", "prelude_frame", "prelude_metrics", "prelude_tables"]

ARMS: Mapping[str, tuple[str, str]] = {
    "shared": ("sparloom, one structure", "#b5443c"), "unshared": ("sparloom, one per kernel", "#d9a441"),
    "redundant": ("paper's tables, per kernel", "#5f7fa8"), "by_tensor": ("paper's tables, per tensor", "#8fa9c9"),
    "by_layout": ("paper's tables, per layout", "#b8cbe0"),
    "sparse_redundant": ("sparse storage, per kernel", "#6f6f6f"),
    "sparse_by_tensor": ("sparse storage, per tensor", "#b0b0b0")}
PAPER_KB: Mapping[tuple[str, int, str], tuple[float, float]] = {  # storage and loop fusion; CoRa, appendix D
    ("cola", 32, "redundant"): (2.93, 32.15), ("cola", 32, "by_tensor"): (1.2, 5.27),
    ("cola", 128, "redundant"): (11.18, 104.22), ("cola", 128, "by_tensor"): (4.58, 17.5),
    ("race", 32, "redundant"): (2.93, 666.54), ("race", 32, "by_tensor"): (1.2, 106.87),
    ("race", 128, "redundant"): (11.18, 2609.58), ("race", 128, "by_tensor"): (4.58, 418.06)}
KB = 1024


def prelude_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Microseconds (of one batch) and kilobytes (mean over batches) by data set, sequences in a batch and arm.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    rows = []
    for data, size, _, case in compared_cases(frame, "prelude"):
        for arm, row in case.iterrows():
            told = PAPER_KB.get((data, size, str(arm)), (np.nan, np.nan))
            rows.append({"data": data, "size": size, "arm": arm, "microseconds": 1e6 * row["median"],
                         "storage kB": row["storage_bytes"] / KB, "paper's storage kB": told[0],
                         "fusion kB": row["fusion_bytes"] / KB, "paper's fusion kB": told[1]})
    return pd.DataFrame(rows).set_index(["data", "size", "arm"])


def prelude_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce to one number each.

    Returns:
        By `prelude/<data>_<size>/`: `<arm>_seconds`, `<arm>_storage_kb` and `<arm>_fusion_kb`; how many times as fast
        our structure is built, `over_<arm>`, the median over turns with `_p10` and `_p90`; how many times as many
        bytes the others take, `kb_<arm>_over_shared`.
    """
    found: dict[str, float] = {}
    for data, size, _, case in compared_cases(frame, "prelude"):
        key, taken = f"prelude/{data}_{size}", case["storage_bytes"] + case["fusion_bytes"]
        for arm in case.index:
            found |= {f"{key}/{arm}_seconds": float(case.loc[arm, "median"]),
                      f"{key}/{arm}_storage_kb": float(case.loc[arm, "storage_bytes"]) / KB,
                      f"{key}/{arm}_fusion_kb": float(case.loc[arm, "fusion_bytes"]) / KB}
            if arm != "shared":
                found |= turn_metrics(f"{key}/over_{arm}", turn_ratios(case, "shared", arm))
                found[f"{key}/kb_{arm}_over_shared"] = float(taken[arm] / taken["shared"])
    return found


def prelude_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Lay out microseconds and kilobytes."""
    found = prelude_frame(frame)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title="auxiliary tables of an encoder layer; kB are means over batches")
    for column in (*found.index.names, *found.columns):
        table.add_column(str(column), justify="left" if column in ("data", "arm") else "right")
    for (data, size, arm), row in found.iterrows():
        numbers = ["" if np.isnan(value) else f"{value:.2f}" for value in row]
        table.add_row(data_title(data), str(size), ARMS[arm][0], *numbers)
    yield table


@styled
def draw_prelude(frame: pd.DataFrame, stem: Path) -> None:
    """Draw kilobytes and microseconds by arm, for every data set and size of batch."""
    found = prelude_frame(frame)
    total = found["storage kB"] + found["fusion kB"]
    drawn, panels = figure(11.0, 3.6, columns=2)
    for axes, values, label in ((panels[0], total, "kB"), (panels[1], found["microseconds"], "microseconds")):
        shown = values.unstack("arm")
        places, width = np.arange(len(shown)), 0.84 / len(ARMS)
        for number, (arm, (title, colour)) in enumerate(ARMS.items()):
            axes.bar(places + (number - (len(ARMS) - 1) / 2) * width, shown[arm], 0.92 * width, color=colour,
                     label=title)
        axes.set_yscale("log")
        axes.set_xticks(places, [f"{data_title(data)}\n{size}" for data, size in shown.index], fontsize=8)
        axes.set_ylabel(label)
    panels[0].set_title("Auxiliary tables of an encoder layer")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    save(drawn, stem)
