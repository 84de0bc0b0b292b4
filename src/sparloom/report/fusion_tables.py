"""Tables of a bench of tile fusion."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from sparloom.report.figures import op_title
from sparloom.report.fusion_metrics import PEERS, group_prefix

__all__ = ["fusion_tables", "speedup_cells"]

OPS = ("gemm_spmm", "spmm_spmm", "spmm_gemm")
WIDTHS = (32, 64, 128)
PARTS: Mapping[str, str] = {"real": "real matrices", "anchors": "anchors"}
LABELS: Mapping[str, str] = {
    "unfused": "own unfused", "separated": "same tiles, nothing fused", "fused": "fused as in the paper",
    "local": "fused, local D1, streamed D", "mkl": "MKL", "torch": "torch", "scipy": "SciPy, one thread",
    "gemv": "tensor compiler, rows in registers", "blas_gemv": "tensor compiler, BLAS", "listing": "tensor compiler",
    "atomic": "atomic tiling", "overlapped": "overlapped tiling",
}


def fusion_tables(metrics: Mapping[str, float]) -> Iterator[Table]:
    """Lay out how many times as fast as each method fuse="auto" is, an operation and a part at a time."""
    for part, name in PARTS.items():
        for op in OPS:
            prefixes = {width: group_prefix(part, op, width, 2, most=2) for width in WIDTHS}
            counts = [int(metrics.get(f"{prefix}/matrices", 0)) for prefix in prefixes.values()]
            if not any(counts):
                continue
            table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                          title=f"{op_title(op)}, {max(counts)} {name}: times as fast as")
            table.add_column("", no_wrap=True)
            for width in WIDTHS:
                table.add_column(f"width {width}", justify="right", no_wrap=True)
            for label, cells in speedup_cells(metrics, list(prefixes.values())):
                table.add_row(label, *cells)
            yield table


def speedup_cells(metrics: Mapping[str, float], prefixes: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Give a row for each method that was timed: its label, and a cell for each group of metrics."""
    for peer in PEERS:
        cells = [_bounded(metrics, f"{prefix}/auto_over_{peer}") for prefix in prefixes]
        if any(cells):
            yield LABELS[peer], cells
    least = [metrics.get(f"{prefix}/auto_over_unfused_min") for prefix in prefixes]
    yield "own unfused, least", ["" if value is None else f"{value:.2f}" for value in least]


def _bounded(metrics: Mapping[str, float], key: str) -> str:
    if key not in metrics:
        return ""
    return f"{metrics[key]:.2f} ({metrics[f'{key}_low']:.2f}–{metrics[f'{key}_high']:.2f})"
