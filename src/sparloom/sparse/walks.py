"""Statistics of a pattern under every tiled walk of a grid: what a schedule meets, whatever machine runs it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from sparloom.sparse.order import locality_order, reorder
from sparloom.sparse.panels import Panels
from sparloom.sparse.pattern import Pattern
from sparloom.sparse.reuse import PRIVATE_BYTES, SHARED_BYTES, ColumnSample, reuse_times
from sparloom.sparse.tiles import TILE_STATISTICS, tile_statistics

__all__ = ["WALK", "WALKS", "WALK_STATISTICS", "WalkGrid", "WalkStatistics", "walk_statistics"]

WALK = ("reordered", "row_panel", "column_panel", "phased", "slice")
WALK_STATISTICS = (
    *TILE_STATISTICS, *(f"private_{size >> 10}k" for size in PRIVATE_BYTES),
    *(f"shared_{size >> 10}k" for size in SHARED_BYTES),
)
ELEMENT = 4  # bytes of a dense element


@dataclass(frozen=True)
class WalkGrid:
    """The walks that are described: all combinations, with and without `locality_order`, with and without phases.

    Args:
        row_panels: rows of a tile.
        column_panels: columns of a tile; 0 for all.
        slices: dense columns that are read at a time.
        lanes: workers side by side.
    """

    row_panels: Sequence[int]
    column_panels: Sequence[int]
    slices: Sequence[int]
    lanes: int

    def __post_init__(self) -> None:
        if min(*self.row_panels, *self.slices, self.lanes) < 1 or min(self.column_panels) < 0:
            raise ValueError(f"walks over {list(self.row_panels)} rows, {list(self.column_panels)} columns, "
                             f"{list(self.slices)} dense columns and {self.lanes} lanes: all must be at least 1; "
                             "columns may be 0 for all")


WALKS = WalkGrid(row_panels=(4, 32, 256, 2048), column_panels=(1024, 16384, 65536, 0), slices=(32, 256), lanes=32)
"""What is stored of every corpus: tiles and slices of COGNATE's SPADE space, and its 32 processing elements."""

WalkStatistics = Mapping[tuple[int, int, int, int, int], Float32[np.ndarray, " statistics"]]
"""(reordered, row panel, column panel or 0, phased, slice) -> numbers named in WALK_STATISTICS."""


def walk_statistics(pattern: Pattern, grid: WalkGrid = WALKS) -> WalkStatistics:
    """Describe every walk over a pattern by the numbers named in `WALK_STATISTICS`; equal patterns give equal numbers.

    Returns:
        (reordered, row panel, column panel or 0, phased, slice) -> those of `tile_statistics`, then the miss ratios of
        dense rows in caches of a single lane and in caches of all lanes together, of the sizes in the names.
    """
    found = {}
    for reordered, order in ((0, pattern), (1, reorder(pattern, *locality_order(pattern)))):
        for walk, numbers in _walks(order, grid):
            found[reordered, *walk] = numbers.astype(np.float32)
    return found


def _walks(pattern: Pattern, grid: WalkGrid) -> Iterator[tuple[tuple[int, int, int, int], np.ndarray]]:
    sample = ColumnSample.of(pattern, seed=0)
    rows, whole = Panels.of(pattern, 1), max(1, pattern.cols)
    breadths = {column_panel: column_panel or whole for column_panel in grid.column_panels}
    one = rows.joined(max(1, pattern.rows))
    of_rows, of_all = ({key: panels.tiles(columns) for key, columns in breadths.items()} for panels in (rows, one))
    for row_panel in grid.row_panels:
        panels = rows.joined(row_panel)
        joined = panels.joined(grid.lanes)
        waves = joined.tiles(whole)
        for column_panel, columns in breadths.items():
            tiles = panels.tiles(columns)
            counted = tile_statistics(tiles, of_rows=of_rows[column_panel], of_waves=joined.tiles(columns),
                                      of_all=of_all[column_panel], waves=waves, lanes=grid.lanes)
            for phased in (0, 1):
                private, shared = reuse_times(sample, tiles, row_panel=row_panel, column_panel=columns,
                                              phased=bool(phased), lanes=grid.lanes)
                for dense in grid.slices:
                    size = dense * ELEMENT
                    ratios = [*private.miss_ratios([bytes_ / size for bytes_ in PRIVATE_BYTES]),
                              *shared.miss_ratios([bytes_ / size for bytes_ in SHARED_BYTES])]
                    yield (row_panel, column_panel, phased, dense), np.append(counted, ratios)
