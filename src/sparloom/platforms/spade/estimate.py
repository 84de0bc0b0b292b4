"""Estimate seconds of configurations on SPADE by a formula: no simulation, no labels, a fraction of a millisecond each.

The formula reads a machine's parameters and the stored statistics of the tiled walk over the matrix
(`sparloom.sparse.WALK_STATISTICS`), and knows nothing else of the simulator. With s dense columns in a pass, n = s / 16
lines in a row of them, and miss ratios m1 >= m2 >= m3 of a private L1, of a share of an L2, and of all L2 and LLC
together:

    passes    = width / s, each of which takes max(smooth(busiest, bytes / bandwidth), instructions) + barriers
    busiest   = imbalance (nonzeros nonzero + row loads row) / elements + tiles / elements tile start
    nonzero   = smooth(cycles, n latency / lines in flight, sparse lines latency / sparse lines in flight)
    latency   = (1 - m1) L1 + (m1 - m2) L2 + (m2 - m3) LLC + m3 DRAM
    bytes     = m3 nonzeros s + rows (used + miss (row loads - used)) + sparse stream + sampled results

where smooth(x, y, ..) = (x^q + y^q + ..)^(1/q) as in the simulator. Row loads are the pairs of a tile and a row with
nonzeros in it. A row that was loaded before misses with probability set / (set + capacity): the set is that of all
elements at work if it is cached, that of one tile in the victim cache if it bypasses, and a whole phase with barriers.

Source: the smooth maximum and the constants are those of `Machine`, from ISCA'23 and HotTiles; rooflines, Williams et
al. 2009. Departures: no queueing at a loaded DRAM, no time in which few elements are at work, one miss ratio per level;
first-free dealing counts as dealing in turn; statistics are those of 32 elements and give the imbalance of other
numbers only where panels are few.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float

from sparloom.platforms.spade.machine import LINE_BYTES, VALUE_BYTES, Machine
from sparloom.space import Config, SpadeSpace
from sparloom.sparse import PRIVATE_BYTES, SHARED_BYTES, WALKS, WalkStatistics, select_walks

SPARSE_BYTES = 12  # of a nonzero: row, column, value
KIB = 1024


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
    nonzeros, columns = max(1, matrix.nnz), matrix.shape[1]
    knobs = {name: np.array([_number(config[name]) for config in configs], np.float64)
             for name in ("row_panel", "column_panel", "split", "barrier", "bypass", "reorder")}
    slices = np.minimum(knobs["split"], width)
    space = SpadeSpace(op, width=width)
    walks = [space.walk(config) for config in configs]
    stats = select_walks(matrix.walks, walks)
    whole = select_walks(matrix.walks, [walk._replace(column_panel=0, phased=0) for walk in walks])
    several = (knobs["column_panel"] > 0) & (knobs["column_panel"] < columns)
    phased = several & (knobs["barrier"] > 0)
    row_bytes, lines = slices * VALUE_BYTES, slices * VALUE_BYTES / LINE_BYTES

    loads, used = stats["tile_rows"] * nonzeros, whole["tile_rows"] * nonzeros
    bypassed = knobs["bypass"] > 0
    miss = _miss_ratios(machine, stats, np.where(bypassed, 0, stats["tile_rows"]))
    reload_miss = _reload_misses(machine, stats, knobs["row_panel"], used, row_bytes, phased=phased, bypassed=bypassed)
    moves = 2 if op == "spmm" else 1  # rows of the result are read and written, others read
    moved = (used + np.maximum(loads - used, 0) * reload_miss) * row_bytes * moves
    moved += nonzeros * (miss["shared"] * row_bytes + SPARSE_BYTES + VALUE_BYTES * (op == "sddmm") * slices / width)

    far = machine.dram_ns + machine.link_ns
    latency = ((1 - miss["l1"]) * machine.l1_ns + (miss["l1"] - miss["l2"]) * machine.l2_ns
               + (miss["l2"] - miss["shared"]) * machine.llc_ns + miss["shared"] * far)
    cycles = np.maximum(lines, machine.forwarding_cycles if op == "spmm" else 1) / machine.clock_ghz
    sparse = SPARSE_BYTES / LINE_BYTES * far / machine.sparse_loads
    nonzero = _smooth(machine, cycles, lines * latency / machine.parallel_dense_lines, sparse)
    near = np.where(bypassed, machine.l1_ns, np.where((knobs["row_panel"] + stats["tile_set"]) * row_bytes
                                                      <= machine.l2_kib * KIB / machine.pes_per_l2,
                                                      machine.l2_ns, machine.llc_ns))
    row = moves * lines * (near + reload_miss * (far - near)) / machine.parallel_dense_lines
    dealt = "panel" if op == "spmm" else "tile"
    imbalance = np.where(phased, stats[f"{dealt}_phase_imbalance"], stats[f"{dealt}_imbalance"])
    panels = np.ceil(matrix.shape[0] / knobs["row_panel"])
    shared = panels if op == "spmm" else stats["tiles"] / np.where(phased, np.maximum(stats["phases"], 1), 1)
    imbalance = _imbalance(imbalance, shared, machine.pes)
    busiest = (nonzeros * imbalance * (nonzero + loads / nonzeros * row)
               + stats["tiles"] * machine.tile_ns) / machine.pes
    stretch = np.maximum(_smooth(machine, busiest, moved / machine.bandwidth * 1e9),
                         stats["tiles"] * machine.instruction_ns)
    return width / slices * (stretch + np.where(phased, stats["phases"] * machine.barrier_ns, 0)) * 1e-9


def _number(value: object) -> int:
    return 0 if value == "all" else int(value)


def _imbalance(of_lanes: np.ndarray, shared: np.ndarray, pes: int) -> np.ndarray:
    """Return the load of the busiest element over the mean, from that with the lanes of `WALKS`.

    More elements have less each only if there are more panels or tiles to share than lanes.
    """
    return np.maximum(1, of_lanes * pes / np.clip(shared, WALKS.lanes, max(pes, WALKS.lanes)))


def _miss_ratios(machine: Machine, stats: dict[str, np.ndarray], cached_loads: np.ndarray) -> dict[str, np.ndarray]:
    """Return the shares of dense rows that miss L1, the share of an element in its L2, and all L2 and LLC.

    Args:
        cached_loads: rows of the other operand per nonzero that take their share of L2 and LLC.
    """
    l1 = _between(stats, "private", PRIVATE_BYTES, np.full(len(cached_loads), machine.l1_kib))
    share = l1 / np.maximum(l1 + cached_loads, np.finfo(float).tiny)
    l2 = np.minimum(l1, _between(stats, "private", PRIVATE_BYTES, share * machine.l2_kib / machine.pes_per_l2))
    shared = np.minimum(l2, _between(stats, "shared", SHARED_BYTES, share * _pool_kib(machine)))
    return {"l1": l1, "l2": l2, "shared": shared}


def _pool_kib(machine: Machine) -> float:
    """Size of all L2 and LLC."""
    return -(-machine.pes // machine.pes_per_l2) * (machine.l2_kib + machine.llc_kib)


def _between(stats: dict[str, np.ndarray], kind: str, sizes: Sequence[int], kib: np.ndarray) -> np.ndarray:
    """Interpolate miss ratios at the logarithm of sizes, (configs,); those of the ends hold beyond them."""
    known, wanted = np.log2(sizes), np.log2(np.maximum(kib, 1) * KIB)
    table, row = np.stack([stats[f"{kind}_{size >> 10}k"] for size in sizes]), np.arange(len(kib))
    at = np.clip(np.searchsorted(known, wanted) - 1, 0, len(sizes) - 2)
    share = np.clip((wanted - known[at]) / (known[at + 1] - known[at]), 0, 1)
    return (1 - share) * table[at, row] + share * table[at + 1, row]


def _reload_misses(
    machine: Machine, stats: dict[str, np.ndarray], row_panel: np.ndarray, used: np.ndarray, row_bytes: np.ndarray, *,
    phased: np.ndarray, bypassed: np.ndarray,
) -> np.ndarray:
    """Return the probability that a row which another tile has loaded is no longer near."""
    cached = np.where(phased, used + stats["phase_set"], machine.pes * row_panel + stats["wave_tile_set"]) * row_bytes
    victims = np.where(phased, used / machine.pes, row_panel) * row_bytes
    capacity = np.where(bypassed, max(machine.victim_kib, 1), _pool_kib(machine)) * KIB
    held = np.where(bypassed, victims, cached)
    return held / (held + capacity)


def _smooth(machine: Machine, *parts: np.ndarray | float) -> np.ndarray:
    exponent = machine.smooth_exponent
    return sum(np.asarray(part) ** exponent for part in parts) ** (1 / exponent)
