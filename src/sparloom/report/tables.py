"""The table a run prints."""

from collections.abc import Mapping

from rich.table import Table

__all__ = ["results_table"]

ROWS = (
    ("random choice", "random", ""), ("cuSPARSE", "vendor", ""), ("static", "static", ""),
    ("zero-shot top-1", "zero_shot_top1", ""),
    ("zero-shot top-5", "zero_shot_top5", ""), ("no transfer top-1", "no_transfer_top1", ""),
    ("no transfer top-5", "no_transfer_top5", ""), ("trees top-1", "trees_top1", ""), ("trees top-5", "trees_top5", ""),
    ("trees + source top-1", "trees_source_top1", ""), ("trees + source top-5", "trees_source_top5", ""),
    ("sparloom top-1", "sparloom_top1", ""), ("sparloom top-5", "sparloom_top5", ""), ("COGNATE top-1", "top1", "bold"),
    ("COGNATE top-5", "top5", "bold"), ("optimum", "optimum", ""),
)


def results_table(metrics: Mapping[str, float], *, prefix: str) -> Table:
    """Lay out speedups and shares of the optimum with their 95 % bounds, one row per method."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for heading in ("geomean speedup", "95 %", "max", "of optimum", "95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, key, style in ROWS:
        speedup = f"{prefix}/{key}_speedup"
        if speedup not in metrics:
            continue
        share = f"{prefix}/{key}_of_optimum"
        cells = [f"{metrics[speedup]:.3f}", _bounds(metrics, speedup), f"{metrics[f'{prefix}/{key}_max']:.2f}"]
        cells += [f"{metrics[share]:.3f}", _bounds(metrics, share)] if share in metrics else ["", ""]
        table.add_row(label, *cells, style=style)
    return table


def _bounds(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[f'{key}_low']:.3f}–{metrics[f'{key}_high']:.3f}"
