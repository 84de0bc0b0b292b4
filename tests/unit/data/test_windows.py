"""Windows of a pattern: what each kind shows, the cap, the file."""

from pathlib import Path

import numpy as np
import pytest

from sparloom.data import MatrixInputs, coarsen, cut_windows
from sparloom.data.windows import KINDS, MAX_CELLS, PANEL, PANELS, TILES, Window
from sparloom.sparse import Pattern


def scattered(rows: int, cols: int, nnz: int, seed: int = 0) -> Pattern:
    rng = np.random.default_rng(seed)
    return Pattern.from_coo(rng.integers(0, rows, nnz), rng.integers(0, cols, nnz), (rows, cols))


def dense(window: Window) -> np.ndarray:
    cells = np.zeros((64, 64), int)
    cells[tuple(window.coords.T)] = window.counts
    return cells


def of_kind(pattern: Pattern, kind: str) -> list[Window]:
    return [window for window in cut_windows(pattern) if window.kind == kind]


@pytest.mark.parametrize(("rows", "cols", "nnz"), [
    (40, 50, 300), (5000, 70, 9000), (64, 3000, 4000), (3000, 2999, 30000)])
def test_the_whole_counts_every_nonzero_on_64_cells(rows: int, cols: int, nnz: int) -> None:
    pattern = scattered(rows, cols, nnz)
    (whole,) = of_kind(pattern, "whole")
    expected = np.zeros((64, 64), int)
    row, col = pattern.row_ids(), pattern.indices.astype(int)
    np.add.at(expected, (row * 64 // max(rows, 64) if rows > 64 else row, col * 64 // cols if cols > 64 else col), 1)
    assert np.array_equal(dense(whole), expected)
    assert whole.counts.sum() == pattern.nnz


def test_the_fullest_panel_and_the_spread_ones_have_their_rows() -> None:
    """Row r of 640 has r % 7 nonzeros, but for a heavy row 333 in panel 10."""
    lengths = np.arange(640) % 7
    lengths[333] = 400
    rows = np.repeat(np.arange(640), lengths)
    cols = np.concatenate([np.arange(length) for length in lengths])
    pattern = Pattern.from_coo(rows, cols, (640, 1000))
    (fullest,) = of_kind(pattern, "fullest")
    assert dense(fullest).sum(axis=1)[:PANEL].tolist() == lengths[320:352].tolist()
    panels = [dense(window).sum(axis=1)[:PANEL].tolist() for window in of_kind(pattern, "rows")]
    numbers = [(2 * part + 1) * 20 // (2 * PANELS) for part in range(PANELS)]
    assert sorted(panels) == sorted(lengths[number * PANEL:(number + 1) * PANEL].tolist() for number in numbers)


def test_tiles_show_single_nonzeros_around_one() -> None:
    pattern = Pattern.from_coo(np.arange(4000), np.arange(4000), (4000, 4000))
    tiles = of_kind(pattern, "tile")
    assert len(tiles) == TILES
    for tile in tiles:
        assert np.array_equal(dense(tile)[:PANEL, :PANEL], np.eye(PANEL, dtype=int))


@pytest.mark.parametrize("seed", range(3))
def test_cells_are_limited_and_the_first_kinds_are_always_there(seed: int) -> None:
    pattern = scattered(900, 5000, 900_000, seed)
    windows = cut_windows(pattern)
    assert sum(len(window.counts) for window in windows) <= MAX_CELLS
    assert [window.kind for window in windows[:2]] == ["whole", "fullest"]
    assert len(windows) < 2 + PANELS + TILES
    assert [KINDS.index(window.kind) for window in windows] == sorted(KINDS.index(window.kind) for window in windows)
    assert all((window.counts > 0).all() and window.coords.min() >= 0 and window.coords.max() < 64
               for window in windows)


def test_windows_are_stored_with_the_inputs(tmp_path: Path) -> None:
    patterns = {"g/empty": Pattern.from_coo(np.zeros(0, int), np.zeros(0, int), (3, 3)), "g/a": scattered(90, 90, 500),
                "h/large": scattered(4000, 4000, 60_000)}
    items = {name: coarsen(pattern, name=name, cost=lambda coords: 0.0) for name, pattern in patterns.items()}
    MatrixInputs.of(list(items.values())).write(tmp_path / "i.npz")
    back = MatrixInputs.read(tmp_path / "i.npz")
    for name, item in items.items():
        assert repr(back[name].windows) == repr(item.windows) == repr(cut_windows(patterns[name]))
