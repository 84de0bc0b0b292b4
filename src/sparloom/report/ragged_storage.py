"""Elements of scores found by the dimension graph and by the pointers of sparse storage: seconds, and tables."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.figures import figure, save, styled
from sparloom.report.ragged_names import data_title
from sparloom.report.ragged_turns import compared_cases, turn_metrics, turn_ratios

__all__ = ["draw_storage", "storage_frame", "storage_metrics", "storage_tables"]

SCHEMES: Mapping[str, tuple[str, str]] = {"graph": ("offsets by dimension graph", "#b5443c"),
                                          "sparse": ("pointers of sparse storage", "#6f6f6f")}
OPERATORS: Mapping[str, str] = {"qkt": "QKT", "softmax": "Softmax", "attnv": "AttnV"}
FORMS: Mapping[str, str] = {"over_sparse": "", "unhoisted_over_sparse": "_unhoisted",
                            "prelude_over_sparse": "_prelude"}  # what both arms end in
KB, MILLISECONDS = 1024, 1e3


def storage_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds, medians, and kilobytes of tables: a row for each operator, data set and size of batch.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    rows = {}
    for data, size, operator, case in compared_cases(frame, "storage"):
        rows[operator, data, size] = {
            **{method: MILLISECONDS * seconds for method, seconds in case["median"].items()},
            **{f"{scheme} kB": case.loc[scheme, "storage_bytes"] / KB for scheme in SCHEMES}}
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index = pd.MultiIndex.from_tuples(rows, names=["operator", "data", "size"])
    return found


def storage_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce to one number each.

    Returns:
        By `storage/<operator>/<data>_<size>/`: how many times as fast as sparse storage the dimension graph is,
        `over_sparse`, `unhoisted_over_sparse` and `prelude_over_sparse`, medians over turns with `_p10` and `_p90`;
        `with_prelude_over_sparse`, of the sums of medians, where one kernel runs once per prelude; `<arm>_seconds`;
        `kb_sparse_over_graph`, of the tables.
    """
    found: dict[str, float] = {}
    for data, size, operator, case in compared_cases(frame, "storage"):
        key, median, taken = f"storage/{operator}/{data}_{size}", case["median"], case["storage_bytes"]
        for name, ending in FORMS.items():
            found |= turn_metrics(f"{key}/{name}", turn_ratios(case, f"graph{ending}", f"sparse{ending}"))
        once = {scheme: median[scheme] + median[f"{scheme}_prelude"] for scheme in SCHEMES}
        found[f"{key}/with_prelude_over_sparse"] = float(once["sparse"] / once["graph"])
        found |= {f"{key}/{arm}_seconds": float(seconds) for arm, seconds in median.items()}
        found[f"{key}/kb_sparse_over_graph"] = float(taken["sparse"] / taken["graph"])
    return found


def storage_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Lay out milliseconds and kilobytes."""
    found = storage_frame(frame)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title="operators of attention by loops, found by either scheme: milliseconds, kB of tables")
    for column in ("", "data", "size", *found.columns):
        table.add_column(column.replace("_", " "), justify="left" if column in ("", "data") else "right")
    for (operator, data, size), row in found.iterrows():
        table.add_row(OPERATORS[operator], data_title(data), str(size), *(f"{value:.3f}" for value in row))
    yield table


@styled
def draw_storage(frame: pd.DataFrame, stem: Path) -> None:
    """Draw milliseconds of operators and of their preludes, by both schemes."""
    found = storage_frame(frame)
    drawn, panels = figure(12.0, 3.6, columns=2)
    places, width = np.arange(len(found)), 0.4
    names = [f"{OPERATORS[operator]}\n{data_title(data)}\n{size}" for operator, data, size in found.index]
    for axes, ending, title in ((panels[0], "", "Operators"), (panels[1], "_prelude", "Their preludes")):
        for number, (scheme, (label, colour)) in enumerate(SCHEMES.items()):
            at = places + (number - 0.5) * width
            axes.bar(at, found[f"{scheme}{ending}"], 0.92 * width, color=colour, label=label)
        axes.set_yscale("log")
        axes.set_xticks(places, names, fontsize=7)
        axes.set_ylabel("milliseconds")
        axes.set_title(title)
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    save(drawn, stem)
