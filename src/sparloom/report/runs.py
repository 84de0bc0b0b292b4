"""Open finished runs; format tables for the console, Markdown and LaTeX; bound ratios by the bootstrap."""

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.data import read_frame
from sparloom.errors import SchemaError
from sparloom.files import check_sum, read_lines
from sparloom.measure.metrics import STORED_SHARES, bootstrap_interval, central, geomean, resample

REMEDY = ("run it again, or bring a committed result back by `git checkout`; after results/ was changed on purpose: "
          "(cd results && sha256sum */* > SHA256SUMS)")
ROWS = (
    ("random choice", "random", ""), ("cuSPARSE", "vendor", ""), ("static", "static", ""),
    ("zero-shot top-1", "zero_shot_top1", ""),
    ("zero-shot top-5", "zero_shot_top5", ""), ("no transfer top-1", "no_transfer_top1", ""),
    ("no transfer top-5", "no_transfer_top5", ""), ("trees top-1", "trees_top1", ""), ("trees top-5", "trees_top5", ""),
    ("trees + source top-1", "trees_source_top1", ""), ("trees + source top-5", "trees_source_top5", ""),
    ("sparloom top-1", "sparloom_top1", ""), ("sparloom top-5", "sparloom_top5", ""), ("COGNATE top-1", "top1", "bold"),
    ("COGNATE top-5", "top5", "bold"), ("optimum", "optimum", ""),
)
ENDINGS: Mapping[str, str] = {"value": "", "low": "_low", "high": "_high", "min": "_min", "max": "_max"}
"""Column -> ending of the metric."""
SHOWN_METRICS = 60
LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "⁶": "$^6$",
}


@dataclass(frozen=True)
class Run:
    """Finished run, whose files are read on demand."""

    folder: Path
    metrics: dict[str, float | None]

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Read commit, versions, machine, seed and data; empty if only the results of the run were kept."""
        path = self.folder / "environment.json"
        return _object(path) if path.exists() else {}

    @cached_property
    def command(self) -> str:
        return (self.folder / "command.txt").read_text(encoding="utf-8").strip()

    @cached_property
    def per_matrix(self) -> pd.DataFrame:
        """Read one row per matrix, method and seed."""
        return _frame(self.folder / "per_matrix.parquet")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Read one row per method, seed and epoch."""
        path = self.folder / "curves.csv"
        return pd.read_csv(io.BytesIO(_content(path)))

    def bounded(self, prefix: str = "") -> pd.DataFrame:
        """Tabulate the metrics that have bounds, see `bounded_metrics`."""
        return bounded_metrics(self.metrics, prefix)

    def table(self, name: str) -> pd.DataFrame:
        """Read another table that the run's task wrote, `name`.parquet."""
        return _frame(self.folder / f"{name}.parquet")


def read_run(folder: Path) -> Run:
    """Open a run folder, such as one under results/.

    Raises:
        FileNotFoundError: the run has no metrics: it has not finished.
        SchemaError: the metrics are damaged.
    """
    path = Path(folder) / "metrics.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: the run has not finished, or the folder is another")
    return Run(Path(folder), _object(path))


def read_runs(outputs: Path) -> pd.DataFrame:
    """Read `runs.jsonl`: one row per run that has ended, in the order of their ends, one column per metric.

    The others: experiment, overrides, folder (relative to `outputs` if inside), started, wall_seconds, commit, dirty,
    seed, status (finished or failed) and reason.

    Raises:
        SchemaError: a line is damaged; one that is still being written is none.
    """
    path, rows = Path(outputs) / "runs.jsonl", []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = json.loads(line)
            metrics = record.pop("metrics") or {}
            rows.append(record | metrics)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SchemaError(f"{path}, line {number} is damaged ({error}): remove it") from None
    return pd.DataFrame(rows)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        check_sum(path, content)
    except ValueError as error:
        raise SchemaError(f"{path} is damaged ({error}): {REMEDY}") from None
    return content


def _frame(path: Path) -> pd.DataFrame:
    _content(path)
    return read_frame(path, REMEDY)


def _object(path: Path) -> dict[str, Any]:
    content = _content(path)
    try:
        value = json.loads(content)
    except ValueError as error:
        raise SchemaError(f"{path} is damaged ({error}): {REMEDY}") from None
    if not isinstance(value, dict):
        raise SchemaError(f"{path} is damaged (a {type(value).__name__}, no object): {REMEDY}")
    return value


def method_rows(metrics: Mapping[str, float], prefix: str) -> list[tuple[str, str, str]]:
    """List label, key and style of every method that has a speedup, those without a name here before the optimum."""
    known = {key for _, key, _ in ROWS}
    found = (re.fullmatch(f"{re.escape(prefix)}/([^/]+_top[15])_speedup", key) for key in metrics)
    others = [match[1] for match in found if match and match[1] not in known]
    rows = [*ROWS[:-1], *((name.replace("_top", " top-"), name, "") for name in others), ROWS[-1]]
    return [row for row in rows if f"{prefix}/{row[1]}_speedup" in metrics]


def results_table(metrics: Mapping[str, float], *, prefix: str) -> Table:
    """Lay out speedups and shares of the optimum with their 95 % bounds, one row per method.

    If `by_size` was computed, shares with equal weights of all bins of rows and those of large matrices follow.
    """
    groups = {title: group for title, group in (("equal bins", "equal_bins"), ("large", "large"))
              if any(key.startswith(f"{prefix}/{group}/") and key.endswith("_of_optimum") for key in metrics)}
    table = report_table(("method", "geomean speedup", "95 %", "max", "of optimum", "95 %", *groups))
    for label, key, style in method_rows(metrics, prefix):
        speedup = f"{prefix}/{key}_speedup"
        share = f"{prefix}/{key}_of_optimum"
        cells = [f"{metrics[speedup]:.3f}", _bounds(metrics, speedup), f"{metrics[f'{prefix}/{key}_max']:.2f}"]
        cells += [f"{metrics[share]:.3f}", _bounds(metrics, share)] if share in metrics else ["", ""]
        shares = (metrics.get(f"{prefix}/{group}/{key}_of_optimum") for group in groups.values())
        table.add_row(label, *cells, *("" if value is None else f"{value:.3f}" for value in shares), style=style)
    return table


def _bounds(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[f'{key}_low']:.3f}–{metrics[f'{key}_high']:.3f}"


def markdown_table(headings: Sequence[str], cells: Sequence[Sequence[str]], *, bold: int | None) -> str:
    """Write a table whose first column is text and whose others are numbers.

    Args:
        cells: by row, as many as headings.
        bold: index of the row to set in bold.
    """
    lines = [[text.replace("|", r"\|") for text in row] for row in (headings, *cells)]
    if bold is not None:
        lines[bold + 1] = [f"**{text}**" if text else "" for text in lines[bold + 1]]
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (lines[0], rule, *lines[1:])) + "\n"


def latex_table(headings: Sequence[str], cells: Sequence[Sequence[str]], *, bold: int | None) -> str:
    """Write the table that `markdown_table` writes as a tabular with the rules of the package booktabs."""
    lines = [[_escaped(text) for text in row] for row in (headings, *cells)]
    if bold is not None:
        lines[bold + 1] = [rf"\textbf{{{text}}}" if text else "" for text in lines[bold + 1]]
    first, *others = (f"  {' & '.join(row)} \\\\" for row in lines)
    columns = "l" + "r" * (len(headings) - 1)
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"  \toprule", first, r"  \midrule", *others,
                      r"  \bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def report_table(
    columns: Sequence[str], *, title: str | None = None, text: Collection[str] | None = None, wrap: bool = False,
) -> Table:
    """Make an empty table in the style of all reports.

    Args:
        text: columns that hold text, aligned to the left; default: the first one. The others hold numbers.
        wrap: cells may wrap.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in (columns[:1] if text is None else text) else "right",
                         no_wrap=not wrap)
    return table


def bounded_metrics(metrics: Mapping[str, float], prefix: str = "") -> pd.DataFrame:
    """Tabulate the metrics that have 95 % bounds: value, low, high and, where known, min and max by key.

    Args:
        prefix: of the keys that are kept.
    """
    keys = [key for key in metrics if key.startswith(prefix) and f"{key}_low" in metrics]
    columns = {name: [metrics.get(f"{key}{ending}", np.nan) for key in keys] for name, ending in ENDINGS.items()}
    return pd.DataFrame(columns, index=pd.Index(keys, name="metric"))


def metrics_tables(metrics: Mapping[str, float]) -> Iterator[Table]:
    """Lay out the metrics with bounds, then the others, as many as fit on a screen."""
    bounded = bounded_metrics(metrics)
    covered = {f"{key}{ending}" for key in bounded.index for ending in ENDINGS.values()}
    single = [key for key in metrics if key not in covered]
    table = report_table(("metric", *ENDINGS))
    for key, *values in bounded.head(SHOWN_METRICS).itertuples():
        table.add_row(key, *("" if np.isnan(value) else f"{value:.3f}" for value in values))
    if table.row_count:
        yield table
    table = report_table(("metric", "value"))
    for key in single[:SHOWN_METRICS]:
        table.add_row(key, f"{metrics[key]:.4g}")
    left = max(0, len(bounded) - SHOWN_METRICS) + max(0, len(single) - SHOWN_METRICS)
    if left:
        table.add_row(f"and {left} more in metrics.json", "")
    if table.row_count:
        yield table


def method_ratios(
    frame: pd.DataFrame, fast: str, slow: str, *, case: Sequence[str], column: str = "seconds",
) -> pd.Series:
    """Divide the seconds of `slow` by those of `fast`, by case, where both were timed.

    Args:
        case: columns that name a case.
    """
    seconds = frame[frame[column].notna()].pivot(index=list(case), columns="method", values=column)
    if fast not in seconds or slow not in seconds:
        return pd.Series(dtype=float)
    return (seconds[slow] / seconds[fast]).dropna()


def grouped_bounds(key: str, ratio: pd.Series, *, level: str, seed: int) -> dict[str, float]:
    """Reduce ratios as `ratio_bounds` does, with a bootstrap that draws groups of cases, such as all of a matrix.

    Cases of one matrix are alike, so drawing single cases gives bounds that are too narrow.

    Args:
        level: of the index, which names the group of each case.
    """
    logs = np.log(ratio.dropna())
    if not logs.size:
        return {}
    groups = logs.groupby(level=level).agg(["sum", "count"]).to_numpy()
    drawn = (groups[draw].sum(axis=0) for draw in resample(len(groups), seed))
    low, high = central([np.exp(total / count) for total, count in drawn], STORED_SHARES)
    return {key: float(np.exp(logs.mean())), f"{key}_low": low, f"{key}_high": high,
            f"{key}_min": float(np.exp(logs.min())), f"{key}_max": float(np.exp(logs.max()))}


def ratio_bounds(key: str, ratio: pd.Series, *, seed: int) -> dict[str, float]:
    """Reduce ratios to a geometric mean with bootstrap bounds, leaving out NaN.

    Args:
        seed: of the bootstrap over cases.

    Returns:
        Their geometric mean as `key`, its 95 % bounds `_low` and `_high`, the extremes `_min` and `_max`; nothing if
        there are no ratios.
    """
    values = ratio.dropna().to_numpy()
    if not values.size:
        return {}
    low, high = bootstrap_interval(values, seed=seed)
    return {key: geomean(values), f"{key}_low": low, f"{key}_high": high, f"{key}_min": float(values.min()),
            f"{key}_max": float(values.max())}
