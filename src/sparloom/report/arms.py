"""Rows from several runs side by side: their statistics, the table that is printed, what notebooks read again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.data import read_frame, write_frame
from sparloom.files import atomic_path
from sparloom.report.figures import NAMES
from sparloom.report.summary import draws, largest, lead, quality, speedups

__all__ = ["Compared", "read_compared", "row_label", "row_metrics", "row_statistics", "rows_cells", "rows_table"]

REMEDY = "compare the arms again, the finished ones are taken as they are"
TEXTS = ("group", "row", "label", "arm", "note", "failure")
HEADINGS: Mapping[str, tuple[str, float, int]] = {
    "ape_time": ("APE of time, %", 1, 2), "ape_speedup": ("APE of speedup, %", 1, 2), "dce": ("DCE/10⁶", 1e6, 2),
    "top1_max": ("largest top-1", 1, 2), "top5_max": ("largest top-5", 1, 2), "opa": ("OPA", 1, 3),
    "kendall_tau": ("tau", 1, 3), "train_prl": ("training loss", 1, 3), "validation_prl": ("validation loss", 1, 3),
}
"""Column -> heading, what it is divided by, digits."""


@dataclass(frozen=True)
class Compared:
    """A finished comparison.

    Args:
        rows: by group and row: its label, the arm it comes from, `row_statistics`, what it read and how long it was
            trained, the paper's numbers as `paper_<statistic>`, a note, and why it failed, "" where it did not.
        per_matrix: as `report.per_matrix` makes it, with the columns group and row in place of method.
        curves: columns group, row, seed, epoch and what was logged; empty where no network was trained.
    """

    rows: pd.DataFrame
    per_matrix: pd.DataFrame
    curves: pd.DataFrame

    def write(self, out: Path) -> None:
        """Write rows.parquet, per_matrix.parquet and, unless empty, curves.csv."""
        for name, frame in (("rows", self.rows), ("per_matrix", self.per_matrix)):
            write_frame(out / f"{name}.parquet", frame)
        if len(self.curves):
            with atomic_path(out / "curves.csv") as partial:
                self.curves.to_csv(partial, index=False)

    def leads(self, group: str, pairs: Mapping[str, str]) -> pd.DataFrame:
        """Ratios of the first choices' speeds of two rows each, on the same resamples of matrices.

        Args:
            pairs: row -> row that it is divided by.

        Returns:
            Indexed by label of the row: over (label of the other), ratio, low, high (95 % bounds over matrices).
        """
        part = self.per_matrix[self.per_matrix["group"] == group]
        labels = self.rows[self.rows["group"] == group].set_index("row")["label"]
        rows = dict(tuple(part.groupby("row", sort=False)))
        draw = draws(part["matrix"].nunique(), seed=0)
        found = [(labels[row], labels[other], *lead(rows[row], rows[other], draw)) for row, other in pairs.items()]
        return pd.DataFrame(found, columns=["row", "over", "ratio", "low", "high"]).set_index("row")


def read_compared(folder: Path) -> Compared:
    """Read what a comparison wrote."""
    curves = folder / "curves.csv"
    rows, per_matrix = (read_frame(folder / f"{name}.parquet", REMEDY) for name in ("rows", "per_matrix"))
    return Compared(rows, per_matrix, pd.read_csv(curves) if curves.exists() else pd.DataFrame())


def row_statistics(frame: pd.DataFrame, *, reference: str | None, seed: int) -> pd.DataFrame:
    """Reduce every row to statistics over its matrices, means over seeds, with 95 % bootstrap bounds.

    Args:
        frame: as `Compared.per_matrix`; every group has a row optimum.
        reference: row that the others are divided by, where the group has it.

    Returns:
        Columns group, row, matrices, seeds, top1_max, top5_max; then top1_speedup, top5_speedup, top1_of_optimum,
        top5_of_optimum, ape_time, ape_speedup, opa, kendall_tau and top1_over_<reference>, each with _low and _high;
        NaN where a row has none.
    """
    found = []
    for group, part in frame.groupby("group", sort=False):
        rows = dict(tuple(part.groupby("row", sort=False)))
        draw = draws(part["matrix"].nunique(), seed)
        for name, own in rows.items():
            bounded = speedups(own, rows["optimum"], draw) | quality(own, draw)
            if reference in rows and name not in (reference, "optimum"):
                bounded[f"top1_over_{reference}"] = lead(own, rows[reference], draw)
            values = {"group": group, "row": name, "matrices": own["matrix"].nunique(), "seeds": own["seed"].nunique()}
            values |= {f"{top}_max": largest(own, top) for top in ("top1", "top5")}
            for key, (value, low, high) in bounded.items():
                values |= {key: value, f"{key}_low": low, f"{key}_high": high}
            found.append(values)
    return pd.DataFrame(found)


def row_label(row: str) -> str:
    """How a row is called unless a comparison says otherwise."""
    return NAMES.get(row, row.replace("_", " "))


def row_metrics(rows: pd.DataFrame) -> dict[str, float]:
    """Flatten `Compared.rows` to `<group>/<row>/<column>`: what was found, not the paper's numbers."""
    metrics = {}
    for values in rows.to_dict(orient="records"):
        for key, value in values.items():
            if key not in TEXTS and not key.startswith("paper_") and np.isfinite(value):
                metrics[f"{values['group']}/{values['row']}/{key}"] = int(value) if value == int(value) else value
    return metrics


def rows_table(rows: pd.DataFrame, *, columns: Sequence[str], bold: str | None) -> Table:
    """Lay out `rows_cells` for the console; rows that failed are red.

    Args:
        bold: row to set in bold.
    """
    headings, cells = rows_cells(rows, columns=columns)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for name, failure, texts in zip(rows["row"], rows["failure"], cells, strict=True):
        table.add_row(*texts, style="red" if failure else "bold" if name == bold else "")
    return table


def rows_cells(rows: pd.DataFrame, *, columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Write the rows of one group as text: labels read, speedups and shares with 95 % bounds, the paper's speedups.

    Args:
        columns: further statistics to show, the paper's in brackets.

    Returns:
        Headings, and as many cells for every row.
    """
    extra = [HEADINGS[column][0] for column in columns]
    headings = ["", "labels target+source", "top-1", "95 %", "top-5", "95 %", "of optimum", "95 %", *extra, "paper"]
    cells = []
    for row in rows.to_dict(orient="records"):
        if row["failure"]:
            cells.append([row["label"], "", "failed", *[""] * (len(headings) - 3)])
            continue
        shares = [*_bounded(row, "top1_of_optimum")] if row["row"] != "optimum" else ["", ""]
        further = [_with_paper(row, column) for column in columns]
        cells.append([row["label"], _labels(row), *_bounded(row, "top1_speedup"), *_bounded(row, "top5_speedup"),
                      *shares, *further, _paper(row)])
    return headings, cells


def _labels(row: Mapping[str, float]) -> str:
    counts = [row.get(f"{side}_labels") for side in ("target", "source")]
    return "" if any(pd.isna(count) for count in counts) else "+".join(f"{int(count)}" for count in counts)


def _bounded(row: Mapping[str, float], key: str) -> tuple[str, str]:
    return f"{row[key]:.3f}", f"{row[f'{key}_low']:.3f}–{row[f'{key}_high']:.3f}"


def _number(value: float | None, divisor: float, digits: int) -> str:
    return "" if value is None or np.isnan(value) else f"{value / divisor:.{digits}f}"


def _with_paper(row: Mapping[str, float], column: str) -> str:
    ours, told = (_number(row.get(key), *HEADINGS[column][1:]) for key in (column, f"paper_{column}"))
    return f"{ours} ({told})" if told else ours


def _paper(row: Mapping[str, float]) -> str:
    """The paper's speedups, top-1 and top-5, as far as it states them."""
    texts = [_number(row.get(f"paper_{top}_speedup"), 1, 2) for top in ("top1", "top5")]
    return " / ".join(text or "–" for text in texts) if texts[1] else texts[0]
