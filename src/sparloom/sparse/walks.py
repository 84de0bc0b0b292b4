"""Cutting a pattern into row panels and tiles, down to counts: how many nonzeros, how many distinct columns.

Statistics of a pattern cut into tiles: how even the work is, how many columns are met together.

Reuse of the dense rows that a tiled schedule reads: miss ratios of caches of several sizes, from reuse times.

Statistics of a pattern under every tiled walk of a grid: what a schedule meets, whatever machine runs it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from jaxtyping import Float, Float32, Integer

from sparloom.sparse.features import locality_order, reorder
from sparloom.sparse.pattern import Pattern

__all__ = [
    "PRIVATE_BYTES", "SHARED_BYTES", "TILE_STATISTICS", "WALK", "WALKS", "WALK_STATISTICS", "ColumnSample",
    "Panels", "ReuseTimes", "Tiles", "WalkGrid", "WalkStatistics", "reuse_times", "tile_statistics",
    "walk_statistics",
]


@dataclass(frozen=True)
class Tiles:
    """The tiles that hold a nonzero, row panel by row panel, each from left to right.

    Args:
        panel, phase: number of the row panel and of the column panel.
        counts: nonzeros.
        distinct: distinct columns.
    """

    panel: Integer[np.ndarray, " tiles"]
    phase: Integer[np.ndarray, " tiles"]
    counts: Integer[np.ndarray, " tiles"]
    distinct: Integer[np.ndarray, " tiles"]

    @property
    def met(self) -> float:
        """Distinct columns of its tile, of the mean nonzero."""
        return float((self.counts * self.distinct).sum() / max(1, self.counts.sum()))


@dataclass(frozen=True)
class Panels:
    """Neighbouring rows of a pattern joined to panels.

    Args:
        counts: (panels, columns), how many nonzeros of a panel lie in a column; columns sorted.
    """

    counts: scipy.sparse.csr_array

    @classmethod
    def of(cls, pattern: Pattern, rows: int) -> "Panels":
        """Join that many neighbouring rows."""
        ones = np.ones(pattern.nnz, np.int64)
        return cls(scipy.sparse.csr_array((ones, pattern.indices, pattern.indptr), shape=pattern.shape)).joined(rows)

    def joined(self, panels: int) -> "Panels":
        """Join that many neighbouring panels."""
        old = self.counts
        starts = np.append(old.indptr[:-1:panels], old.nnz)
        made = scipy.sparse.csr_array((old.data.copy(), old.indices.copy(), starts),
                                      shape=(len(starts) - 1, old.shape[1]))
        made.has_sorted_indices = made.has_canonical_format = False  # columns repeat and go back at every old panel
        made.sum_duplicates()
        return Panels(made)

    def tiles(self, columns: int) -> Tiles:
        """Cut every panel at multiples of `columns`."""
        counts = self.counts
        panel = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        phase = counts.indices.astype(np.int64) // columns
        first = np.ones(counts.nnz, bool)
        first[1:] = (panel[1:] != panel[:-1]) | (phase[1:] != phase[:-1])
        begin = np.flatnonzero(first)
        nonzeros = np.add.reduceat(counts.data, begin) if begin.size else np.zeros(0, np.int64)
        return Tiles(panel[begin], phase[begin], nonzeros, np.diff(np.append(begin, counts.nnz)))


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


PRIVATE_BYTES = (2**13, 2**15, 2**17, 2**19)
SHARED_BYTES = (2**20, 2**22, 2**24, 2**26)
ENOUGH = 30_000  # nonzeros of a sample of columns, about
WINDOWS = 2.0 ** np.arange(27)  # accesses, over which reuse times are counted


@dataclass(frozen=True)
class ColumnSample:
    """The nonzeros of some columns, all of each; which dense rows they read stands for the whole.

    Source: sampling by address as in SHARDS (Waldspurger et al., FAST 2015), with plain random numbers for its hashes.
    """

    row: Integer[np.ndarray, " sampled"]
    column: Integer[np.ndarray, " sampled"]

    @classmethod
    def of(cls, pattern: Pattern, *, seed: int) -> "ColumnSample":
        """Draw so many columns that about 30,000 nonzeros lie in them; all of a small pattern."""
        rng = np.random.default_rng(seed)
        kept = rng.random(pattern.cols) * pattern.nnz < ENOUGH
        chosen = kept[pattern.indices]
        return cls(pattern.row_ids()[chosen].astype(np.int64), pattern.indices[chosen].astype(np.int64))


@dataclass(frozen=True)
class ReuseTimes:
    """How many accesses lie between two to the same dense row, sorted; and how often there is no earlier one."""

    times: Float[np.ndarray, " reused"]
    first: int

    def miss_ratios(self, capacities: Sequence[float]) -> list[float]:
        """Share of accesses that miss in a cache of that many dense rows that evicts the longest unused.

        Source: the average footprint of a window is the integral of the share of reuse times beyond it, and a cache is
        full when the footprint is its size (Xiang et al., ASPLOS 2013).
        """
        count = len(self.times) + self.first
        if not count:
            return [0.0] * len(capacities)
        beyond = 1 - np.searchsorted(self.times, WINDOWS, side="right") / count
        footprint = 1 + np.append(0, np.cumsum((beyond[:-1] + beyond[1:]) / 2 * np.diff(WINDOWS)))
        return [float(np.interp(np.log2(capacity), np.log2(footprint), beyond)) for capacity in capacities]


def reuse_times(
    sample: ColumnSample, tiles: Tiles, *, row_panel: int, column_panel: int, phased: bool, lanes: int
) -> tuple[ReuseTimes, ReuseTimes]:
    """Reuse times that every lane sees for itself, and those in what all lanes access together.

    Row panels are dealt to lanes in turn; lanes walk theirs side by side, one nonzero each at a time. A nonzero within
    a tile is put where its row would be if all rows of the tile were equally long.

    Args:
        sample: of the pattern.
        tiles: all of it, of this size.
        phased: lanes wait for each other after every column of tiles; otherwise row panel after row panel.
    """
    lane = tiles.panel % lanes
    begin = _phased_begin(tiles, lane) if phased else _free_begin(tiles, lane)
    across = int(tiles.phase.max(initial=0)) + 1
    tile = np.searchsorted(tiles.panel * across + tiles.phase,
                           sample.row // row_panel * across + sample.column // column_panel)
    time = begin[tile] + (sample.row % row_panel + 0.5) / row_panel * tiles.counts[tile]
    busy = min(lanes, len(np.unique(lane)))
    return _between(time, sample.column * lanes + lane[tile]), _between(time * busy, sample.column)


def _between(time: np.ndarray, owner: np.ndarray) -> ReuseTimes:
    """Times between neighbouring accesses of one owner."""
    order = np.lexsort((time, owner))
    again = owner[order][1:] == owner[order][:-1]
    gaps = np.maximum(1.0, np.diff(time[order])[again])
    return ReuseTimes(np.sort(gaps), len(order) - len(gaps))


def _free_begin(tiles: Tiles, lane: np.ndarray) -> Float[np.ndarray, " tiles"]:
    """When each tile begins if lanes never wait."""
    order = np.argsort(lane, kind="stable")
    return _restored(order, _since(tiles.counts[order], lane[order]))


def _phased_begin(tiles: Tiles, lane: np.ndarray) -> Float[np.ndarray, " tiles"]:
    """When each tile begins if a phase begins once all lanes have ended the one before."""
    order = np.lexsort((lane, tiles.phase))
    counts, phase = tiles.counts[order], tiles.phase[order]
    since = _since(counts, phase * (int(lane.max(initial=0)) + 1) + lane[order])
    filled, first, place = np.unique(phase, return_index=True, return_inverse=True)
    lasts = np.maximum.reduceat(since + counts, first) if filled.size else np.zeros(0)
    return _restored(order, since + (np.cumsum(lasts) - lasts)[place])


def _since(counts: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Sum of the counts before each, within groups of neighbours."""
    before = np.cumsum(counts) - counts
    new = np.ones(len(group), bool)
    new[1:] = group[1:] != group[:-1]
    return before - np.maximum.accumulate(np.where(new, before, 0))


def _restored(order: np.ndarray, values: np.ndarray) -> np.ndarray:
    back = np.empty(len(order))
    back[order] = values
    return back


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
