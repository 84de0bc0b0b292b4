"""Estimate seconds of configurations on SPADE by a formula: no simulation, no labels, a few milliseconds each matrix.

The formula reads a machine's parameters and the stored statistics of the tiled walk over the matrix
(`sparloom.sparse.WALK_STATISTICS`), and knows nothing else of the simulator. With s dense columns in a pass, n = s / 16
lines in a row of them, and c and r rows of either operand that a nonzero loads from DRAM on average:

    passes  = width / s, each of which takes max(smooth(busiest, bytes / bandwidth) + flush, instructions) + barriers
    busiest = (imbalance nonzeros nonzero + tiles tile start) / elements
    nonzero = max(cycles + stall, n (c + r) latency / lines in flight, sparse lines latency / sparse lines in flight)
    stall   = (1 - ((1 - c) (1 - r))^w) (latency - w cycles) / w, where w nonzeros fill the reservation stations
    bytes   = (c + r) nonzeros s + rows of the result, written back + sparse stream + sampled results

where smooth(x, y) = (x^q + y^q)^(1/q) as in the simulator. The rows that one nonzero of w waits for hold up all of
them. A row of the operand that columns name is gone once rows of both operands that were loaded after it fill the LLC;
L2 holds copies. The other operand's rows are loaded once for each tile with nonzeros in them: from DRAM the first time,
and later if what is loaded between two tiles does not fit the LLC, or the victim cache if they bypass. Results that the
caches hold at the end are flushed when nothing else is left to do.

Source: the smooth maximum and the constants are those of `Machine`, from ISCA'23 and HotTiles; rooflines, Williams et
al. 2009; time to fill a cache from miss ratios, Xiang et al., ASPLOS 2013. Departures: no queueing at a loaded DRAM, no
waiting for caches, no time in which few elements are at work; first-free dealing counts as dealing in turn; statistics
are those of 32 elements and give the imbalance of other numbers only where panels are few.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float

from sparloom.platforms.spade.machine import LINE_BYTES, VALUE_BYTES, Machine
from sparloom.space import Config, SpadeSpace, Walk
from sparloom.sparse import SHARED_BYTES, WALKS, WalkStatistics, select_walks

SPARSE_ARRAYS = 3  # row, column and value of a nonzero
KIB = 1024
MIN_MISSES = 1e-3  # share of nonzeros, where a miss ratio is divided by or has a logarithm
Numbers = dict[str, Float[np.ndarray, " configs"]]


class Walked(Protocol):
    """What is known of a matrix."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def walks(self) -> WalkStatistics: ...


def estimate_seconds(
    machine: Machine, op: str, matrix: Walked, configs: Sequence[Config], *, width: int
) -> Float[np.ndarray, " configs"]:
    """Estimate the seconds of configurations.

    Args:
        op: "spmm" or "sddmm".
        width: columns of the dense operands.

    Raises:
        Unsupported: a walk of a configuration has no statistics.
    """
    work = _work(machine, op, matrix, configs, width)
    nonzeros, tiles, row_bytes, q = work["nonzeros"], work["tiles"], work["row_bytes"], machine.smooth_exponent
    columns, rows = _column_misses(work), _row_misses(machine, work)
    busiest = (nonzeros * work["imbalance"] * _nonzero_ns(machine, row_bytes / LINE_BYTES, columns, rows)
               + tiles * machine.tile_ns) / machine.pes
    moved, flushed = nonzeros * ((columns + rows) * row_bytes + SPARSE_ARRAYS * VALUE_BYTES), 0
    if op == "spmm":
        flushed = np.where(work["bypassed"], 0, np.minimum(work["rows"], work["capacity"])) * row_bytes
        moved += nonzeros * rows * row_bytes - flushed
    else:  # tiles begin and end within a line, and results are written in every pass
        moved += nonzeros * VALUE_BYTES + tiles * (SPARSE_ARRAYS + 1) * LINE_BYTES / 2
    nanoseconds = (busiest**q + (moved / machine.bandwidth * 1e9) ** q) ** (1 / q) + flushed / machine.bandwidth * 1e9
    barriers = np.where(work["phased"], work["phases"] * machine.barrier_ns, 0)
    passes = width * VALUE_BYTES / row_bytes
    return passes * (np.maximum(nanoseconds, tiles * machine.instruction_ns) + barriers) * 1e-9


def _work(machine: Machine, op: str, matrix: Walked, configs: Sequence[Config], width: int) -> Numbers:
    """Return the statistics of walks, the imbalance of elements, and besides:

    columns, rows: those with nonzeros; loads: rows with nonzeros in a tile, of all tiles
    repeated: dense rows that a phase, or the whole walk, reads for columns
    active: dense rows that tiles at work, or those of a phase, read for rows
    capacity: dense rows that the LLC holds, or the caches above where there is none
    """
    space, nonzeros = SpadeSpace(op, width=width), max(1, matrix.nnz)
    walks = [space.walk(config) for config in configs]
    stats = select_walks(matrix.walks, walks)
    whole = select_walks(matrix.walks, [walk._replace(column_panel=0, phased=0) for walk in walks])
    _, row_panel, column_panel, barrier, slices = np.array(walks, np.float64).T
    several = (column_panel > 0) & (column_panel < matrix.shape[1])
    phased, parts, dealt = several & (barrier > 0), np.ceil(matrix.shape[0] / row_panel), "panel"
    if op == "sddmm":
        heights = np.minimum(row_panel, matrix.shape[0]) / np.clip(stats["tiles"] / parts, 1, machine.pes)
        stats |= _shared_misses(matrix, walks, heights, several & ~phased)
        dealt, parts = "tile", stats["tiles"] / np.where(phased, np.maximum(stats["phases"], 1), 1)
    imbalance = np.where(phased, stats[f"{dealt}_phase_imbalance"], stats[f"{dealt}_imbalance"])
    # more elements have less each only if there are more parts to share than lanes
    imbalance *= machine.pes / np.clip(parts, WALKS.lanes, max(machine.pes, WALKS.lanes))
    used, row_bytes = whole["tile_rows"] * nonzeros, slices * VALUE_BYTES
    largest = max(machine.llc_kib, machine.l2_kib, machine.l1_kib * machine.pes_per_l2) * KIB
    return stats | {
        "nonzeros": np.full(len(walks), nonzeros), "columns": whole["phase_set"], "rows": used,
        "loads": stats["tile_rows"] * nonzeros, "repeated": np.where(phased, stats["phase_set"], whole["phase_set"]),
        "active": np.where(phased, used, machine.pes * row_panel), "row_panel": row_panel, "phased": phased,
        "bypassed": np.array([config["bypass"] for config in configs]), "row_bytes": row_bytes,
        "capacity": -(-machine.pes // machine.pes_per_l2) * largest / row_bytes, "imbalance": np.maximum(1, imbalance),
    }


def _shared_misses(matrix: Walked, walks: Sequence[Walk], heights: np.ndarray, together: np.ndarray) -> Numbers:
    """Return the miss ratios of shared caches where elements work on the tiles of one row panel together.

    They read dense rows in the order of a walk over all columns in which each has the rows of a lower panel.
    """
    near = np.array(WALKS.row_panels)[np.abs(np.log2(heights[:, None] / WALKS.row_panels)).argmin(axis=1)]
    order = [walk._replace(row_panel=int(rows), column_panel=0, phased=0) if tiles else walk
             for walk, rows, tiles in zip(walks, near, together, strict=True)]
    return {name: values for name, values in select_walks(matrix.walks, order).items() if name.startswith("shared_")}


def _column_misses(work: Numbers) -> Float[np.ndarray, " configs"]:
    """Return the share of nonzeros for whose column a dense row is loaded from DRAM.

    The stored miss ratios tell after how many nonzeros a cache of each size is full, and so how large the cache must be
    to hold the other dense rows, too. A cache of all that is repeated misses it once.
    """
    sizes = np.array([0, *SHARED_BYTES])[:, None] / work["row_bytes"]
    ratios = np.stack([np.ones(sizes.shape[1]), *(work[f"shared_{size >> 10}k"] for size in SHARED_BYTES)])
    ratios = np.where(sizes < work["repeated"], ratios, work["columns"] / work["nonzeros"])
    sizes = np.minimum(sizes, work["repeated"])
    taken = np.cumsum(np.diff(sizes, axis=0) / np.maximum((ratios[1:] + ratios[:-1]) / 2, MIN_MISSES), axis=0)
    end = 1 / np.where(work["phased"], np.maximum(work["phases"], 1), 1)
    share = np.where(sizes[1:] < work["repeated"], taken / work["nonzeros"], end)
    others = np.minimum(np.minimum(work["loads"] * share, work["active"] + work["rows"] * share), work["rows"])
    sizes[1:] += np.where(work["bypassed"], 0, others)
    known = zip(np.log1p(work["capacity"]), np.log1p(sizes).T, np.log(np.maximum(ratios, MIN_MISSES)).T, strict=True)
    return np.exp([np.interp(*each) for each in known])


def _row_misses(machine: Machine, work: Numbers) -> Float[np.ndarray, " configs"]:
    """Return the dense rows that nonzeros load from DRAM for their rows, per nonzero."""
    between = work["active"] + np.where(work["phased"], work["phase_set"], work["wave_tile_set"])
    victims = np.where(work["phased"], work["rows"] / machine.pes, work["row_panel"])
    again = np.where(work["bypassed"], victims / (victims + max(machine.victim_kib, 1) * KIB / work["row_bytes"]),
                     np.maximum(0, 1 - work["capacity"] / between))
    return (work["rows"] + np.maximum(work["loads"] - work["rows"], 0) * again) / work["nonzeros"]


def _nonzero_ns(machine: Machine, lines: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the time of a nonzero on an element that has DRAM to itself."""
    far, cycles = machine.dram_ns + machine.link_ns, lines / machine.clock_ghz
    window = np.maximum(1, machine.reservation_stations // lines)  # nonzeros
    waits = 1 - ((1 - columns) * (1 - np.minimum(rows, 1))) ** window
    return np.maximum.reduce([
        cycles + waits * np.maximum(0, far / window - cycles),
        lines * (columns + rows) * far / machine.parallel_dense_lines,
        np.full(len(lines), SPARSE_ARRAYS * VALUE_BYTES / LINE_BYTES * far / machine.sparse_loads)])
