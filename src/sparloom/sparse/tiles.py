"""Statistics of a pattern cut into tiles: how even the work is, how many columns are met together."""

import numpy as np
from jaxtyping import Float, Integer

from sparloom.sparse.panels import Tiles

__all__ = ["TILE_STATISTICS", "tile_statistics"]

TILE_STATISTICS = (
    "tiles", "phases", "tile_cv", "tile_max", "tile_columns", "tile_rows", "tile_set", "phase_set", "wave_columns",
    "wave_set", "wave_tile_set", "panel_imbalance", "panel_phase_imbalance", "tile_imbalance", "tile_phase_imbalance",
)  # fmt: skip


def tile_statistics(
    tiles: Tiles, *, of_rows: Tiles, of_waves: Tiles, of_all: Tiles, waves: Tiles, lanes: int
) -> Float[np.ndarray, " statistics"]:
    """Describe how a pattern falls into tiles, by the numbers named in `TILE_STATISTICS`; all are finite.

    A row panel is a row of tiles, a phase a column of them. `lanes` workers take row panels in turn and side by side:
    that many neighbouring row panels are a wave. Nothing is assumed of caches.

    Args:
        tiles: of the row panels.
        of_rows, of_waves, of_all: tiles of the same columns, where a row, a wave, all rows are one panel.
        waves: the waves, not cut.
        lanes: workers.

    Returns:
        tiles, phases: how many tiles and phases hold a nonzero;
        tile_cv, tile_max: nonzeros per tile: coefficient of variation, maximum over mean;
        tile_columns, tile_rows: distinct columns, rows of each tile, summed, per nonzero;
        tile_set, phase_set: distinct columns of a tile, of a phase, as the mean nonzero sees it;
        wave_columns: distinct columns of each wave, summed, per nonzero;
        wave_set, wave_tile_set: distinct columns of a wave, of a wave within a phase, as the mean nonzero sees it;
        panel_imbalance, panel_phase_imbalance: nonzeros of the fullest lane over the mean, when row panels are dealt to
        lanes in turn: over the whole, and where all lanes wait for each other after every phase;
        tile_imbalance, tile_phase_imbalance: the same when single tiles are dealt in turn.
    """
    count = len(tiles.counts)
    if not count:
        return np.array([0.0] * 11 + [1.0] * 4)
    nnz = int(tiles.counts.sum())
    mean = nnz / count
    by_panel, in_turn, phase_by_phase = tiles.panel % lanes, np.arange(count) % lanes, _turns(tiles.phase) % lanes
    return np.array([
        count, len(of_all.counts), tiles.counts.std() / mean, tiles.counts.max() / mean,
        tiles.distinct.sum() / nnz, len(of_rows.counts) / nnz, tiles.met, of_all.met,
        waves.distinct.sum() / nnz, waves.met, of_waves.met,
        _imbalance(tiles.counts, by_panel, lanes), _phase_imbalance(tiles, by_panel, lanes),
        _imbalance(tiles.counts, in_turn, lanes), _phase_imbalance(tiles, phase_by_phase, lanes),
    ])


def _turns(phase: Integer[np.ndarray, " tiles"]) -> Integer[np.ndarray, " tiles"]:
    """Running number of each tile when phases are walked one by one."""
    turns = np.empty(len(phase), np.int64)
    turns[np.argsort(phase, kind="stable")] = np.arange(len(phase))
    return turns


def _imbalance(counts: np.ndarray, lane: np.ndarray, lanes: int) -> float:
    """Load of the fullest lane over the mean."""
    return float(np.bincount(lane, weights=counts).max() * lanes / counts.sum())


def _phase_imbalance(tiles: Tiles, lane: np.ndarray, lanes: int) -> float:
    """The same where every phase lasts as long as its fullest lane."""
    filled, place = np.unique(tiles.phase, return_inverse=True)
    loads = np.bincount(place * lanes + lane, weights=tiles.counts, minlength=len(filled) * lanes)
    return float(loads.reshape(-1, lanes).max(axis=1).sum() * lanes / tiles.counts.sum())
