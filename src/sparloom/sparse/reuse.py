"""Reuse of the dense rows that a tiled schedule reads: miss ratios of caches of several sizes, from reuse times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from sparloom.sparse.panels import Tiles
from sparloom.sparse.pattern import Pattern

__all__ = ["PRIVATE_BYTES", "SHARED_BYTES", "ColumnSample", "ReuseTimes", "reuse_times"]

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
