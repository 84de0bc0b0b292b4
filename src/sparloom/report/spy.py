"""A spy plot with a tiling drawn into it."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm

from sparloom.report.figures import figure, save, styled

if TYPE_CHECKING:
    from sparloom.sparse import Pattern

__all__ = ["draw_spy"]

CELLS = 256   # of the longer side
LINES = 64    # more boundaries than this are not drawn one by one


@styled
def draw_spy(pattern: "Pattern", stem: Path, *, rows_step: int, cols_step: int, title: str) -> None:
    """Draw where the nonzeros are, as counts per cell, and the boundaries of tiles of rows_step x cols_step."""
    height, width = pattern.shape
    cells = max(1, -(-max(height, width) // CELLS))
    counts = np.zeros((-(-height // cells), -(-width // cells)))
    np.add.at(counts, (pattern.row_ids() // cells, pattern.indices // cells), 1)
    tall = float(np.clip(4.6 * height / max(1, width), 1.6, 6.4))
    drawn, (axes,) = figure(5.2, tall + 0.6)
    shown = np.ma.masked_equal(counts, 0)
    axes.imshow(shown, extent=(0, width, height, 0), aspect="auto", interpolation="nearest", cmap="Blues",
                norm=LogNorm(vmin=0.3, vmax=max(1.0, float(counts.max()))))
    drawn_rows = _boundaries(height, rows_step)
    drawn_cols = _boundaries(width, cols_step)
    axes.hlines(drawn_rows, 0, width, color="#b5443c", linewidth=0.5, alpha=0.8)
    axes.vlines(drawn_cols, 0, height, color="#b5443c", linewidth=0.5, alpha=0.8)
    axes.grid(visible=False)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_title(title, fontsize=9, parse_math=False)  # a file's name may hold dollars
    axes.set_xlabel(f"tiles of {min(rows_step, height)} rows x {min(cols_step, width)} columns"
                    + ("" if len(drawn_rows) or height <= rows_step else "; rows too fine to draw"))
    save(drawn, stem)


def _boundaries(extent: int, step: int) -> np.ndarray:
    places = np.arange(step, extent, step)
    return places if len(places) <= LINES else places[:0]
