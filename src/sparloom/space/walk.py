"""How a configuration walks a matrix, in terms that say nothing of the machine."""

from typing import NamedTuple

__all__ = ["Walk"]


class Walk(NamedTuple):
    """A tiled walk; equal to a key of `sparloom.sparse.walk_statistics`.

    Args:
        reordered: 1 if rows and columns are brought into another order first.
        row_panel: rows of a tile.
        column_panel: columns of a tile; 0 for all.
        phased: 1 if one column of tiles is finished before the next.
        slice: dense columns that are read at a time.
    """

    reordered: int
    row_panel: int
    column_panel: int
    phased: int
    slice: int
