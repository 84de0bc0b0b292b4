"""Cut a matrix into tiles and deal them to processing elements; the front of every simulator level."""

from dataclasses import dataclass

import numpy as np

from sparloom.platforms.spade.native import call
from sparloom.sparse import Pattern

__all__ = ["CYCLIC", "Schedule", "Tiling", "deal", "tile"]

CYCLIC = (0, 0)


@dataclass(frozen=True)
class Tiling:
    """The non-empty tiles of a pattern, row panel by row panel, each from left to right.

    Args:
        shape: of the pattern.
        row_panel, column_panel: rows and columns of a tile.
        row, column: (nnz,) int32, the nonzeros tile by tile, within a tile row by row.
        source: (nnz,) int64, place of each nonzero in the CSR arrays, or None when it was not asked for.
        tile_row, tile_column: (tiles,) int32, panel numbers of each tile.
        begin: (tiles + 1,) int64, first nonzero of each tile.
    """

    shape: tuple[int, int]
    row_panel: int
    column_panel: int
    row: np.ndarray
    column: np.ndarray
    source: np.ndarray | None
    tile_row: np.ndarray
    tile_column: np.ndarray
    begin: np.ndarray

    @property
    def count(self) -> int:
        """Number of non-empty tiles."""
        return len(self.tile_row)

    @property
    def column_panels(self) -> int:
        """Number of column panels, empty ones included."""
        return max(1, -(-self.shape[1] // self.column_panel))


@dataclass(frozen=True)
class Schedule:
    """The tiles of each processing element (PE), in order, phase by phase; all PEs wait for each other between phases.

    Args:
        order: (tiles,) int32; PE p in phase f takes tiles order[start[f * pes + p] : start[f * pes + p + 1]].
        start: (phases * pes + 1,) int64.
    """

    phases: int
    pes: int
    order: np.ndarray
    start: np.ndarray

    def tiles_of(self, phase: int, pe: int) -> np.ndarray:
        """Tiles that a PE takes in a phase, in order."""
        slot = phase * self.pes + pe
        return self.order[self.start[slot] : self.start[slot + 1]]


def tile(pattern: Pattern, row_panel: int, column_panel: int, *, with_source: bool = False) -> Tiling:
    """Sort the nonzeros into tiles of `row_panel` rows and `column_panel` columns (ISCA'23 §4.2: sizes, not counts)."""
    if row_panel < 1 or column_panel < 1:
        raise ValueError(f"tile of {row_panel} rows and {column_panel} columns: both must be at least 1")
    nnz = pattern.nnz
    row, column, tile_row, tile_column = (np.empty(nnz, dtype=np.int32) for _ in range(4))
    begin = np.empty(nnz + 1, dtype=np.int64)
    source = np.empty(nnz, dtype=np.int64) if with_source else None
    count = call("spade_tile", [
        pattern.rows, pattern.cols, pattern.indptr, pattern.indices, row_panel, column_panel,
        row, column, source, tile_row, tile_column, begin,
    ])
    return Tiling(
        shape=pattern.shape, row_panel=row_panel, column_panel=column_panel, row=row, column=column, source=source,
        tile_row=tile_row[:count].copy(), tile_column=tile_column[:count].copy(), begin=begin[: count + 1].copy(),
    )


def deal(tiling: Tiling, op: str, *, pes: int, barrier: bool, costs: tuple[int, int] = CYCLIC) -> Schedule:
    """Give row panels (SpMM) or single tiles (SDDMM) to PEs, in order; a row panel of SpMM stays on its PE.

    Without barriers there is one phase, row panel by row panel; with barriers one phase per non-empty column panel
    (ISCA'23 figure 5, with groups of one column panel).

    Args:
        costs: of a nonzero and of a tile; the next one goes to the PE with the least cost so far in the phase. CYCLIC
            deals in turn instead: row panel, or running tile number, modulo `pes`.
    """
    if op not in ("spmm", "sddmm"):
        raise ValueError(f"op {op!r} has no schedule on SPADE: use 'spmm' or 'sddmm'")
    panels = tiling.column_panels if barrier else 1
    order = np.empty(tiling.count, dtype=np.int32)
    start = np.zeros(panels * pes + 1, dtype=np.int64)
    phases = call("spade_schedule", [
        tiling.count, tiling.tile_row, tiling.tile_column, tiling.begin, tiling.column_panels, pes, int(op == "spmm"),
        int(barrier), *costs, order, start,
    ])
    return Schedule(phases=phases, pes=pes, order=order, start=start[: phases * pes + 1].copy())
