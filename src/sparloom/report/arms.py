"""Compare runs row by row: statistics, the printed table, figures of a group (PNG and SVG, readable in grey)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from rich.table import Table

from sparloom.data import read_frame, write_frame
from sparloom.files import atomic_path
from sparloom.measure.metrics import resample
from sparloom.report.evaluation import by_size, largest, lead, quality, speedups
from sparloom.report.figures import NAMES, draw_curves, draw_matrices, figure, save, set_ticks, styled
from sparloom.report.runs import report_table

REMEDY = "compare the arms again, the finished ones are taken as they are"
TEXTS = ("group", "row", "label", "arm", "note", "failure")
HEADINGS: Mapping[str, tuple[str, float, int]] = {
    "ape_time": ("APE of time, %", 1, 2), "ape_speedup": ("APE of speedup, %", 1, 2), "dce": ("DCE/10⁶", 1e6, 2),
    "top1_max": ("largest top-1", 1, 2), "top5_max": ("largest top-5", 1, 2), "opa": ("OPA", 1, 3),
    "kendall_tau": ("tau", 1, 3), "train_prl": ("training loss", 1, 3), "validation_prl": ("validation loss", 1, 3),
    "equal_bins_of_optimum": ("equal bins", 1, 3), "large_of_optimum": ("large", 1, 3),
}
"""Column -> heading, what it is divided by, digits."""
SIZED = ("equal_bins_of_optimum", "large_of_optimum")  # shown wherever they are known
DARK, LIGHT, WHOLE, EDGE, GREY = "#3d5a80", "#c3d0e0", "#8a8a8a", "#2b2b2b", "#404040"
PAPER = {"marker": "D", "markersize": 5, "color": EDGE, "markerfacecolor": "white", "linestyle": ""}
STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))  # of lines: distinct without colour
ASIDE = 1.02  # factor by which lines stand aside, so that bounds do not cover each other
SHADES = ("#b5443c", "#3d5a80", "#7aa974", "#9a9a9a")
SIZES: Mapping[str, str] = {
    "target_matrices": "matrices of the target to learn from", "source_matrices": "matrices of the source",
    "target_labels": "labels of the target", "source_labels": "labels of the source",
}


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
        """Divide the top-1 speedups of pairs of rows, on the same resamples.

        Args:
            pairs: row -> row that it is divided by.

        Returns:
            Indexed by label of the row: over (label of the other), ratio, low, high (95 % bounds).
        """
        part = self.per_matrix[self.per_matrix["group"] == group]
        labels = self.rows[self.rows["group"] == group].set_index("row")["label"]
        rows = dict(tuple(part.groupby("row", sort=False)))
        draw = resample(part["matrix"].nunique(), 0)
        found = [(labels[row], labels[other], *lead(rows[row], rows[other], draw)) for row, other in pairs.items()]
        return pd.DataFrame(found, columns=["row", "over", "ratio", "low", "high"]).set_index("row")


def read_compared(folder: Path) -> Compared:
    """Read what a comparison wrote."""
    curves = folder / "curves.csv"
    rows, per_matrix = (read_frame(folder / f"{name}.parquet", REMEDY) for name in ("rows", "per_matrix"))
    return Compared(rows, per_matrix, pd.read_csv(curves) if curves.exists() else pd.DataFrame())


def row_statistics(frame: pd.DataFrame, *, reference: str | None, seed: int) -> pd.DataFrame:
    """Reduce every row to statistics over its matrices, means over seeds, with 95 % bounds as `summary` has them.

    Args:
        frame: as `Compared.per_matrix`; every group has a row optimum.
        reference: row that the others are divided by, where the group has it.

    Returns:
        Columns group, row, matrices, seeds, top1_max, top5_max; then top1_speedup, top5_speedup, top1_of_optimum,
        top5_of_optimum, ape_time, ape_speedup, opa, kendall_tau and top1_over_<reference>, each with _low and _high;
        NaN where a row has none. If the frame has rows of matrices, what `by_size` gives, as equal_bins_of_optimum and
        so on.
    """
    found = []
    for group, part in frame.groupby("group", sort=False):
        rows = dict(tuple(part.groupby("row", sort=False)))
        draw = resample(part["matrix"].nunique(), seed)
        for name, own in rows.items():
            bounded = speedups(own, rows["optimum"], draw) | quality(own, draw)
            judged = reference in rows and name not in (reference, "optimum")
            if judged:
                bounded[f"top1_over_{reference}"] = lead(own, rows[reference], draw)
            if "rows" in part and name != "optimum":
                others = {str(reference): rows[reference]} if judged else {}
                bounded |= {key.replace("/", "_"): value
                            for key, value in by_size(own, rows["optimum"], others, seed=seed).items()}
            values = {"group": group, "row": name, "matrices": own["matrix"].nunique(), "seeds": own["seed"].nunique()}
            values |= {f"{top}_max": largest(own, top) for top in ("top1", "top5")}
            for key, (value, low, high) in bounded.items():
                values |= {key: value, f"{key}_low": low, f"{key}_high": high}
            found.append(values)
    return pd.DataFrame(found)


def row_label(row: str) -> str:
    """Name a row, unless the comparison names it."""
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
    table = report_table(headings)
    for name, failure, texts in zip(rows["row"], rows["failure"], cells, strict=True):
        table.add_row(*texts, style="red" if failure else "bold" if name == bold else "")
    return table


def rows_cells(rows: pd.DataFrame, *, columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Write the rows of one group as text: labels read, speedups and shares with 95 % bounds, the paper's speedups.

    Shares of the optimum with equal weights of bins of rows, and over large matrices, follow where they were computed.

    Args:
        columns: further statistics to show, the paper's in brackets.

    Returns:
        Headings, and as many cells for every row.
    """
    columns = [*columns, *(column for column in SIZED if column in rows and rows[column].notna().any())]
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
    ours, papers = (_number(row.get(key), *HEADINGS[column][1:]) for key in (column, f"paper_{column}"))
    return f"{ours} ({papers})" if papers else ours


def _paper(row: Mapping[str, float]) -> str:
    """Format the paper's speedups, top-1 and top-5, as far as it states them."""
    texts = [_number(row.get(f"paper_{top}_speedup"), 1, 2) for top in ("top1", "top5")]
    return " / ".join(text or "–" for text in texts) if texts[1] else texts[0]


class GroupFigure(Protocol):
    """Interface: draw one group of a comparison to `stem`.png and `stem`.svg."""

    def draw(self, compared: Compared, group: str, stem: Path, *, title: str) -> None: ...


@dataclass(frozen=True)
class Bars:
    """Bar chart of all rows: top-1 dark beside top-5 light, with 95 % bounds; diamonds are the paper's numbers."""

    @styled
    def draw(self, compared: Compared, group: str, stem: Path, *, title: str) -> None:
        rows = _finished(compared, group)
        drawn, (axes,) = figure(1.4 + 0.8 * len(rows), 3.6)
        tops = (("top1", -0.2, DARK, "top-1"), ("top5", 0.2, LIGHT, "top-5"))
        for number, row in enumerate(rows):
            whole = row["row"] == "optimum"
            for top, shift, shade, label in tops[:1] if whole else tops:
                _bar(axes, number + (0 if whole else shift), row, top, WHOLE if whole else shade,
                     label=label if number == 0 else None)
        if any(not pd.isna(row.get(f"paper_{top}_speedup")) for row in rows for top, *_ in tops):
            axes.plot([], [], label="the paper's", **PAPER)
        axes.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))  # the default configuration
        axes.set_ylim(0, 1.14 * max(row[f"{top}_speedup_high"] for row in rows for top in ("top1", "top5")))
        axes.set_xticks(range(len(rows)), [row["label"].replace(" ", "\n") for row in rows])
        axes.set(ylabel="speedup over the default", title=title)
        save(drawn, stem, legend=True)


@dataclass(frozen=True)
class Lines:
    """Line chart of top-1 speedup over a size; rows without a line are horizontal lines.

    Args:
        x: column of the rows, such as target_matrices or source_matrices.
        lines: label -> rows that it joins.
    """

    x: str
    lines: Mapping[str, Sequence[str]]

    @styled
    def draw(self, compared: Compared, group: str, stem: Path, *, title: str) -> None:
        rows = {row["row"]: row for row in _finished(compared, group)}
        drawn, (axes,) = figure(6.4, 3.8)
        joined = {name for names in self.lines.values() for name in names}
        shifts = ASIDE ** np.linspace(-1, 1, len(self.lines)) if len(self.lines) > 1 else [1.0]
        drawing = zip(self.lines.items(), STYLES, SHADES, shifts, strict=False)
        for (label, names), (style, marker), shade, shift in drawing:
            points = sorted((rows[name] for name in names if name in rows), key=lambda row: row[self.x])
            sizes = [shift * row[self.x] for row in points]
            axes.errorbar(sizes, [row["top1_speedup"] for row in points], yerr=_bounds(points, "top1_speedup"),
                          linestyle=style, marker=marker, color=shade, capsize=3, linewidth=1.3, label=label)
            published = [(size, row["paper_top1_speedup"]) for size, row in zip(sizes, points, strict=True)
                         if not pd.isna(row.get("paper_top1_speedup"))]
            if published:
                axes.plot(*zip(*published, strict=True), linestyle="", marker=marker, markerfacecolor="white",
                          color=shade, label=f"{label}, paper")
        for (name, row), (style, _) in zip(rows.items(), STYLES * len(rows), strict=False):
            if name not in joined:
                axes.axhline(row["top1_speedup"], color=GREY, linewidth=0.9, linestyle=style)
                axes.annotate(row["label"], (1, row["top1_speedup"]), xycoords=("axes fraction", "data"), fontsize=8,
                              xytext=(3, 0), textcoords="offset points", va="center")
        axes.set_xscale("log")
        set_ticks(axes.xaxis, sorted({int(rows[name][self.x]) for name in joined if name in rows}))
        axes.set(xlabel=SIZES.get(self.x, self.x), ylabel="speedup over the default", title=title)
        save(drawn, stem, legend=True, columns=4)


@dataclass(frozen=True)
class Shares:
    """Dot chart of shares of the optimum, best row on top: top-1 filled with 95 % bounds, top-5 hollow."""

    @styled
    def draw(self, compared: Compared, group: str, stem: Path, *, title: str) -> None:
        rows = [row for row in _finished(compared, group) if row["row"] != "optimum"]
        rows.sort(key=lambda row: row["top1_of_optimum"])
        drawn, (axes,) = figure(6.4, 1.3 + 0.27 * len(rows))
        key = "top1_of_optimum"
        axes.errorbar([row[key] for row in rows], range(len(rows)), xerr=_bounds(rows, key), linestyle="", marker="o",
                      markersize=5, color=DARK, capsize=2, linewidth=1.1, label="top-1")
        axes.plot([row["top5_of_optimum"] for row in rows], range(len(rows)), linestyle="", marker="o", markersize=5,
                  color=DARK, markerfacecolor="white", label="top-5")
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8.5)
        axes.grid(visible=True, axis="x")
        axes.set(xlabel="share of the optimum", title=title)
        save(drawn, stem, legend=True, loc="outside lower right", columns=2)


@dataclass(frozen=True)
class Matrices:
    """Speedups of one row on every matrix, top-1 and top-5, below the optimum."""

    row: str

    def draw(self, compared: Compared, group: str, stem: Path, *, title: str) -> None:
        frame = compared.per_matrix
        draw_matrices(frame[frame["group"] == group].rename(columns={"row": "method"}), stem, title=title,
                      method=self.row)


@dataclass(frozen=True)
class Curves:
    """Training curves: loss, ordered pair accuracy and Kendall tau over epochs, of training and validation."""

    def draw(self, compared: Compared, group: str, stem: Path, *, title: str) -> None:
        frame = compared.curves
        if frame.empty or group not in set(frame["group"]):
            raise ValueError(f"no curves of {group}: none of its arms trained a network")
        draw_curves(frame[frame["group"] == group].rename(columns={"row": "method"}), stem)


def _finished(compared: Compared, group: str) -> list[dict[str, Any]]:
    rows = compared.rows
    return rows[(rows["group"] == group) & (rows["failure"] == "")].to_dict(orient="records")


def _bar(axes: Axes, centre: float, row: Mapping[str, Any], top: str, shade: str, *, label: str | None) -> None:
    key = f"{top}_speedup"
    axes.bar(centre, row[key], width=0.38, color=shade, edgecolor=EDGE, linewidth=0.6, label=label)
    axes.errorbar(centre, row[key], yerr=_bounds([row], key), color=GREY, linewidth=1, capsize=2)
    axes.annotate(f"{row[key]:.2f}", (centre, row[f"{key}_high"]), xytext=(0, 3), textcoords="offset points",
                  ha="center", fontsize=7.5)
    published = row.get(f"paper_{key}")
    if not pd.isna(published):
        axes.plot(centre, published, zorder=4, **PAPER)


def _bounds(rows: Sequence[Mapping[str, Any]], key: str) -> list[list[float]]:
    return [[row[key] - row[f"{key}_low"] for row in rows], [row[f"{key}_high"] - row[key] for row in rows]]
