"""Statistics of a pattern as tiled schedules traverse it, independent of the machine.

A pattern is cut into row panels and tiles, which are counted; from the counts follow balance and distinct columns, and
from the times between reuses of a dense row the miss ratios of caches of several sizes. A walk is one order of tiles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from jaxtyping import Float, Float32, Integer

from sparloom.errors import Unsupported
from sparloom.sparse.features import locality_order, reorder
from sparloom.sparse.pattern import Pattern

TILE_STATISTICS = (
    "tiles", "phases", "tile_cv", "tile_max", "tile_columns", "tile_rows", "tile_set", "phase_set", "wave_columns",
    "wave_set", "wave_tile_set", "panel_imbalance", "panel_phase_imbalance", "tile_imbalance", "tile_phase_imbalance",
)  # fmt: skip
PRIVATE_BYTES = (2**13, 2**15, 2**17, 2**19)
"""Sizes of the private caches of a lane whose miss ratios are among the statistics of a walk."""

SHARED_BYTES = (2**20, 2**22, 2**24, 2**26)
"""Sizes of the caches that all lanes share, likewise."""

SAMPLED_NONZEROS = 30_000  # expected, of a sample of columns
WINDOWS = 2.0 ** np.arange(27)  # lengths in accesses at which the distribution of reuse times is evaluated
WALK = ("reordered", "row_panel", "column_panel", "phased", "slice")
"""Parameters of a walk over a matrix."""

WALK_STATISTICS = (
    *TILE_STATISTICS, *(f"private_{size >> 10}k" for size in PRIVATE_BYTES),
    *(f"shared_{size >> 10}k" for size in SHARED_BYTES),
)
"""Names of the statistics of a walk, in their order."""

ELEMENT_BYTES = 4  # of the dense matrix
WalkStatistics = Mapping[tuple[int, int, int, int, int], Float32[np.ndarray, " statistics"]]
"""(reordered, row panel, column panel or 0, phased, slice) -> statistics named in WALK_STATISTICS."""


@dataclass(frozen=True)
class Tiles:
    """Nonempty tiles, row panel by row panel, each from left to right.

    Args:
        panel, phase: index of the row panel and of the column panel.
        counts: nonzeros.
        distinct: distinct columns.
    """

    panel: Integer[np.ndarray, " tiles"]
    phase: Integer[np.ndarray, " tiles"]
    counts: Integer[np.ndarray, " tiles"]
    distinct: Integer[np.ndarray, " tiles"]

    @property
    def columns_per_nonzero(self) -> float:
        """Distinct columns of the tile of a nonzero, averaged over the nonzeros."""
        return float((self.counts * self.distinct).sum() / max(1, self.counts.sum()))


@dataclass(frozen=True)
class Panels:
    """Row panels: adjacent rows joined; counts (panels, columns) of nonzeros, columns sorted."""

    counts: scipy.sparse.csr_array

    @classmethod
    def of(cls, pattern: Pattern, rows: int) -> "Panels":
        """Join every `rows` adjacent rows."""
        ones = np.ones(pattern.nnz, np.int64)
        return cls(scipy.sparse.csr_array((ones, pattern.indices, pattern.indptr), shape=pattern.shape)).joined(rows)

    def joined(self, panels: int) -> "Panels":
        """Join every `panels` adjacent panels."""
        old = self.counts
        starts = np.append(old.indptr[:-1:panels], old.nnz)
        counts = scipy.sparse.csr_array((old.data.copy(), old.indices.copy(), starts),
                                        shape=(len(starts) - 1, old.shape[1]))
        counts.has_sorted_indices = counts.has_canonical_format = False  # columns restart at every old panel
        counts.sum_duplicates()
        return Panels(counts)

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


def tile_statistics(
    tiles: Tiles, *, of_rows: Tiles, of_waves: Tiles, of_all: Tiles, waves: Tiles, lanes: int
) -> Float[np.ndarray, " statistics"]:
    """Compute the statistics of a tiling named in `TILE_STATISTICS`; all are finite.

    A row panel is a row of tiles, a phase a column of tiles. Row panels are assigned to `lanes` workers round-robin;
    every `lanes` adjacent row panels, which run in parallel, are a wave. Caches are not modelled.

    Args:
        tiles: of the row panels.
        of_rows, of_waves, of_all: tiles of the same columns, where a row, a wave, all rows are one panel.
        waves: the waves, not cut.
        lanes: workers.

    Returns:
        tiles, phases: number of nonempty tiles and phases;
        tile_cv, tile_max: nonzeros per tile: coefficient of variation, maximum over mean;
        tile_columns, tile_rows: distinct columns, rows of each tile, summed, per nonzero;
        tile_set, phase_set: distinct columns of the tile, of the phase of a nonzero, averaged over the nonzeros;
        wave_columns: distinct columns of each wave, summed, per nonzero;
        wave_set, wave_tile_set: distinct columns of the wave, of the wave within the phase of a nonzero, averaged;
        panel_imbalance, panel_phase_imbalance: nonzeros of the fullest lane over the mean, with row panels assigned
        round-robin: over the whole, and with a barrier after every phase;
        tile_imbalance, tile_phase_imbalance: the same with single tiles assigned round-robin.
    """
    count = len(tiles.counts)
    if not count:
        return np.array([0.0] * 11 + [1.0] * 4)
    nnz = int(tiles.counts.sum())
    mean = nnz / count
    by_panel, by_tile, by_phase = tiles.panel % lanes, np.arange(count) % lanes, _phase_order(tiles.phase) % lanes
    return np.array([
        count, len(of_all.counts), tiles.counts.std() / mean, tiles.counts.max() / mean,
        tiles.distinct.sum() / nnz, len(of_rows.counts) / nnz, tiles.columns_per_nonzero, of_all.columns_per_nonzero,
        waves.distinct.sum() / nnz, waves.columns_per_nonzero, of_waves.columns_per_nonzero,
        _imbalance(tiles.counts, by_panel, lanes), _phase_imbalance(tiles, by_panel, lanes),
        _imbalance(tiles.counts, by_tile, lanes), _phase_imbalance(tiles, by_phase, lanes),
    ])


def _phase_order(phase: Integer[np.ndarray, " tiles"]) -> Integer[np.ndarray, " tiles"]:
    """Return the position of each tile when phases are traversed one by one."""
    positions = np.empty(len(phase), np.int64)
    positions[np.argsort(phase, kind="stable")] = np.arange(len(phase))
    return positions


def _imbalance(counts: np.ndarray, lane: np.ndarray, lanes: int) -> float:
    """Return the load of the fullest lane over the mean."""
    return float(np.bincount(lane, weights=counts).max() * lanes / counts.sum())


def _phase_imbalance(tiles: Tiles, lane: np.ndarray, lanes: int) -> float:
    """Return the same if every phase lasts as long as its fullest lane."""
    phases, phase = np.unique(tiles.phase, return_inverse=True)
    loads = np.bincount(phase * lanes + lane, weights=tiles.counts, minlength=len(phases) * lanes)
    return float(loads.reshape(-1, lanes).max(axis=1).sum() * lanes / tiles.counts.sum())


@dataclass(frozen=True)
class ColumnSample:
    """All nonzeros of a sample of columns, whose accesses to dense rows represent those of the whole pattern.

    Source: spatial sampling as in SHARDS (Waldspurger et al., FAST 2015), with random numbers in place of its hashes.
    """

    row: Integer[np.ndarray, " sampled"]
    column: Integer[np.ndarray, " sampled"]

    @classmethod
    def of(cls, pattern: Pattern, *, seed: int) -> "ColumnSample":
        """Sample columns that hold about 30,000 nonzeros; all of a small pattern."""
        rng = np.random.default_rng(seed)
        kept = rng.random(pattern.cols) * pattern.nnz < SAMPLED_NONZEROS
        chosen = kept[pattern.indices]
        return cls(pattern.row_ids()[chosen].astype(np.int64), pattern.indices[chosen].astype(np.int64))


@dataclass(frozen=True)
class ReuseTimes:
    """Accesses between two to the same dense row, sorted, and the number of first accesses."""

    times: Float[np.ndarray, " reused"]
    first: int

    def miss_ratios(self, capacities: Sequence[float]) -> list[float]:
        """Compute the miss ratios of LRU caches of so many dense rows.

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
    """Compute the reuse times within each lane, and those in the interleaved accesses of all lanes.

    Row panels are assigned to lanes round-robin; lanes process one nonzero each at a time. A nonzero is placed within
    its tile as if all rows of the tile were equally long.

    Args:
        sample: of the pattern.
        tiles: all tiles of the pattern, of this size.
        phased: with a barrier after every column of tiles; otherwise row panels follow each other freely.
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
    """Compute the times between consecutive accesses of the same owner."""
    order = np.lexsort((time, owner))
    again = owner[order][1:] == owner[order][:-1]
    gaps = np.maximum(1.0, np.diff(time[order])[again])
    return ReuseTimes(np.sort(gaps), len(order) - len(gaps))


def _free_begin(tiles: Tiles, lane: np.ndarray) -> Float[np.ndarray, " tiles"]:
    """Compute when each tile begins if lanes never wait."""
    order = np.argsort(lane, kind="stable")
    return _restored(order, _since(tiles.counts[order], lane[order]))


def _phased_begin(tiles: Tiles, lane: np.ndarray) -> Float[np.ndarray, " tiles"]:
    """Compute when each tile begins if a phase begins after all lanes have ended the previous one."""
    order = np.lexsort((lane, tiles.phase))
    counts, phase = tiles.counts[order], tiles.phase[order]
    since = _since(counts, phase * (int(lane.max(initial=0)) + 1) + lane[order])
    phases, first, index = np.unique(phase, return_index=True, return_inverse=True)
    durations = np.maximum.reduceat(since + counts, first) if phases.size else np.zeros(0)
    return _restored(order, since + (np.cumsum(durations) - durations)[index])


def _since(counts: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Compute exclusive prefix sums of the counts within runs of equal groups."""
    before = np.cumsum(counts) - counts
    new = np.ones(len(group), bool)
    new[1:] = group[1:] != group[:-1]
    return before - np.maximum.accumulate(np.where(new, before, 0))


def _restored(order: np.ndarray, values: np.ndarray) -> np.ndarray:
    back = np.empty(len(order))
    back[order] = values
    return back


@dataclass(frozen=True)
class WalkGrid:
    """Walks to describe: all combinations, each with and without `locality_order` and with and without phases.

    Args:
        row_panels: rows of a tile.
        column_panels: columns of a tile; 0 for all.
        slices: dense columns that are read at a time.
        lanes: parallel workers.
    """

    row_panels: Sequence[int]
    column_panels: Sequence[int]
    slices: Sequence[int]
    lanes: int


WALKS = WalkGrid(row_panels=(4, 32, 256, 2048), column_panels=(1024, 16384, 65536, 0), slices=(32, 256), lanes=32)
"""Walks that are stored for every corpus: tiles and slices of COGNATE's SPADE space, and its 32 processing elements."""


def walk_statistics(pattern: Pattern, grid: WalkGrid = WALKS) -> WalkStatistics:
    """Compute the statistics named in `WALK_STATISTICS` for every walk; equal patterns give equal numbers.

    Returns:
        (reordered, row panel, column panel or 0, phased, slice) -> those of `tile_statistics`, then the miss ratios of
        dense rows in private caches of a lane and in caches shared by all lanes, of the sizes in the names.
    """
    found = {}
    for reordered, order in ((0, pattern), (1, reorder(pattern, *locality_order(pattern)))):
        for walk, numbers in _walks(order, grid):
            found[reordered, *walk] = numbers.astype(np.float32)
    return found


def select_walks(
    statistics: WalkStatistics, walks: Sequence[tuple[int, int, int, int, int]]
) -> dict[str, Float[np.ndarray, " walks"]]:
    """Return the numbers of some walks by their names in `WALK_STATISTICS`.

    Raises:
        Unsupported: one has no statistics.
    """
    missing = [walk for walk in walks if walk not in statistics]
    if missing:
        raise Unsupported(f"{missing[0]} is not among the walks with statistics, {WALKS}: choose model=cognate or "
                          "model=trees")
    table = np.array([statistics[walk] for walk in walks], np.float64).reshape(len(walks), len(WALK_STATISTICS))
    return dict(zip(WALK_STATISTICS, table.T, strict=True))


def _walks(pattern: Pattern, grid: WalkGrid) -> Iterator[tuple[tuple[int, int, int, int], np.ndarray]]:
    sample = ColumnSample.of(pattern, seed=0)
    rows, all_columns = Panels.of(pattern, 1), max(1, pattern.cols)
    widths = {column_panel: column_panel or all_columns for column_panel in grid.column_panels}
    one = rows.joined(max(1, pattern.rows))
    of_rows, of_all = ({key: panels.tiles(columns) for key, columns in widths.items()} for panels in (rows, one))
    for row_panel in grid.row_panels:
        panels = rows.joined(row_panel)
        joined = panels.joined(grid.lanes)
        waves = joined.tiles(all_columns)
        for column_panel, columns in widths.items():
            tiles = panels.tiles(columns)
            counted = tile_statistics(tiles, of_rows=of_rows[column_panel], of_waves=joined.tiles(columns),
                                      of_all=of_all[column_panel], waves=waves, lanes=grid.lanes)
            for phased in (0, 1):
                private, shared = reuse_times(sample, tiles, row_panel=row_panel, column_panel=columns,
                                              phased=bool(phased), lanes=grid.lanes)
                for dense in grid.slices:
                    size = dense * ELEMENT_BYTES
                    ratios = [*private.miss_ratios([bytes_ / size for bytes_ in PRIVATE_BYTES]),
                              *shared.miss_ratios([bytes_ / size for bytes_ in SHARED_BYTES])]
                    yield (row_panel, column_panel, phased, dense), np.append(counted, ratios)
