"""Windows: small parts of a pattern at several resolutions, in which a featurizer sees rows, tiles and the whole.

A grid that is coarse enough for convolutions over a whole matrix hides how rows vary and how often columns are reused.
Windows show both at native resolution, at a cost that does not grow with the matrix:

    whole      the whole matrix on 64 x 64 cells
    fullest    the panel of 32 rows (from row 0, 32, 64, ...) with most nonzeros, all columns in 64 cells
    rows       six times 32 consecutive rows, spread evenly over the matrix, all columns in 64 cells
    tile       eight tiles of 32 x 32 rows and columns, each centred on one of eight evenly spread nonzeros

Cells hold numbers of nonzeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.sparse import Pattern

KINDS = ("whole", "fullest", "rows", "tile")
GRID = 64
PANEL = 32
PANELS = 6
TILES = 8
MAX_CELLS = 6144
"""Most occupied cells of all windows of a matrix; further panels and tiles are left out."""

MEMBERS = ("window_numbers", "window_kinds", "window_lengths", "window_cells", "window_counts")


@dataclass(frozen=True)
class Window:
    """Occupied cells of a part of a pattern.

    Args:
        kind: one of `KINDS`.
        coords: int32 (n, 2), row and column of each occupied cell, in row-major order, below `GRID`.
        counts: int32 (n,), nonzeros in each cell.
    """

    kind: str
    coords: np.ndarray
    counts: np.ndarray


def cut_windows(pattern: Pattern) -> tuple[Window, ...]:
    """Cut the windows of a pattern, "whole" and "fullest" first; windows without nonzeros are left out.

    Reads all nonzeros once. A matrix without nonzeros has no windows.
    """
    if not pattern.nnz:
        return ()
    rows, cols = pattern.row_ids().astype(np.int64), pattern.indices.astype(np.int64)
    starts = pattern.indptr.astype(np.int64)
    panels = np.add.reduceat(np.diff(starts), np.arange(0, pattern.rows, PANEL))

    def panel(kind: str, number: int) -> Window:
        part = slice(starts[number * PANEL], starts[min(pattern.rows, (number + 1) * PANEL)])
        return _window(kind, rows[part] - number * PANEL, cols[part], (PANEL, pattern.cols), (PANEL, GRID))

    def tile(nonzero: int) -> Window:
        row, col = (max(0, int(at[nonzero]) - PANEL // 2) for at in (rows, cols))
        part = slice(starts[row], starts[min(pattern.rows, row + PANEL)])
        inside = (cols[part] >= col) & (cols[part] < col + PANEL)
        return _window("tile", rows[part][inside] - row, cols[part][inside] - col, (PANEL, PANEL), (PANEL, PANEL))

    found = [_window("whole", rows, cols, pattern.shape, (GRID, GRID)), panel("fullest", int(panels.argmax()))]
    others = [panel("rows", number) for number in sorted({*_spread(len(panels), PANELS)})]
    others += [tile(nonzero) for nonzero in sorted({*_spread(pattern.nnz, TILES)})]
    cells = sum(len(window.counts) for window in found)
    for index in np.random.default_rng(0).permutation(len(others)):  # spread those that are left out
        window = others[index]
        if len(window.counts) and cells + len(window.counts) <= MAX_CELLS:
            found.append(window)
            cells += len(window.counts)
    return tuple(sorted(found, key=lambda window: KINDS.index(window.kind)))


def _spread(count: int, parts: int) -> list[int]:
    """Return the middles of equal parts of range(count)."""
    return [(2 * part + 1) * count // (2 * parts) for part in range(parts)]


def _window(
    kind: str, rows: np.ndarray, cols: np.ndarray, extent: tuple[int, int], grid: tuple[int, int],
) -> Window:
    """Count nonzeros on a grid; cells are single rows and columns where the extent is not larger than the grid."""
    row, col = (at if size <= cells else at * cells // size
                for at, size, cells in zip((rows, cols), extent, grid, strict=True))
    keys, counts = np.unique(row * GRID + col, return_counts=True)
    return Window(kind, np.stack([keys // GRID, keys % GRID], axis=1).astype(np.int32), counts.astype(np.int32))


def pack_windows(matrices: Sequence[Sequence[Window]]) -> dict[str, np.ndarray]:
    """Concatenate the windows of many matrices to the arrays `MEMBERS`, which compress well."""
    windows = [window for of_matrix in matrices for window in of_matrix]
    cells = [window.coords[:, 0] * GRID + window.coords[:, 1] for window in windows]
    counts = np.concatenate([np.zeros(0, np.int64), *(window.counts for window in windows)])
    return dict(zip(MEMBERS, (
        np.array([len(of_matrix) for of_matrix in matrices], np.int32),
        np.array([KINDS.index(window.kind) for window in windows], np.uint8),
        np.array([len(window.counts) for window in windows], np.int32),
        np.concatenate([np.zeros(0, np.int64), *cells]).astype(np.uint16),
        counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
    ), strict=True))


class PackedWindows:
    """Windows of many matrices by their number, from the arrays of `pack_windows`.

    Raises:
        ValueError: the arrays are inconsistent.
    """

    def __init__(self, arrays: Mapping[str, Any], matrices: int) -> None:
        numbers, self._kinds, self._lengths, self._cells, self._counts = (arrays[name] for name in MEMBERS)
        self._first = np.concatenate([[0], np.cumsum(numbers, dtype=np.int64)])
        self._begin = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])
        sizes = (len(numbers), len(self._kinds), len(self._lengths), len(self._cells), len(self._counts))
        wanted = (matrices, self._first[-1], self._first[-1], self._begin[-1], self._begin[-1])
        if sizes != tuple(int(size) for size in wanted) or (self._kinds >= len(KINDS)).any() or (
                self._cells >= GRID * GRID).any():
            raise ValueError(f"windows of sizes {sizes} do not match {matrices} matrices")

    def __getitem__(self, matrix: int) -> tuple[Window, ...]:
        return tuple(self._window(number) for number in range(self._first[matrix], self._first[matrix + 1]))

    def _window(self, number: int) -> Window:
        part = slice(self._begin[number], self._begin[number + 1])
        cells = self._cells[part].astype(np.int32)
        return Window(KINDS[self._kinds[number]], np.stack([cells // GRID, cells % GRID], axis=1),
                      self._counts[part].astype(np.int32))
