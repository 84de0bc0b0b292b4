"""Figure of a bench of CPU kernels: how many times as fast as those of other libraries ours are."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from sparloom.report.figures import figure, logarithmic, save, styled, width_bars

__all__ = ["draw_kernels"]

OWN = "own"
OPS: Mapping[str, str] = {"gemm": "tall GEMM", "spmm": "SpMM", "gemm_spmm": "GeMM-SpMM,\nunfused"}
PEERS: Mapping[str, tuple[str, str]] = {
    "mkl": ("MKL", "#7aa974"), "numba": ("Numba", "#d9a441"), "torch": ("torch", "#9a9a9a"),
    "scipy": ("SciPy", "#c8c8c8"),
}


@styled
def draw_kernels(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw geometric means over matrices of how many times as fast as each peer we are, a bar for each width.

    Args:
        frame: per_matrix.parquet of `bench_kernels`.
    """
    found = {}
    for op in OPS:
        seconds = frame[frame["op"] == op].pivot(index=["matrix", "width"], columns="method", values="median")
        for peer in (peer for peer in PEERS if peer in seconds):
            ratio = (seconds[peer] / seconds[OWN]).dropna()
            found |= {(f"{op} {peer}", width): own.to_numpy() for width, own in ratio.groupby("width")}
    groups = [name.split() for name in dict.fromkeys(name for name, _ in found)]
    drawn, (axes,) = figure(7.2, 3.6)
    width_bars(axes, found, {f"{op} {peer}": PEERS[peer][1] for op, peer in groups})
    logarithmic(axes)
    axes.set_xticks(range(len(groups)), [f"{PEERS[peer][0]}\n{OPS[op]}" for op, peer in groups], fontsize=8)
    axes.set_ylabel("times as fast is our kernel")
    axes.set_title(title)
    save(drawn, stem)
