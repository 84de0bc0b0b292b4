"""Published effects of the options of SPADE, beside ours on generated stand-ins of the paper's matrices.

Stand-ins have 1/factor of the rows and the same nonzeros per row, and run on a machine with 1/factor of the processing
elements and of the bandwidth, so that panels per element and bytes per cache do not change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from scipy.spatial import Delaunay

from sparloom.platforms.spade.machine import Machine
from sparloom.platforms.spade.simulate import simulate_ops
from sparloom.space import Config
from sparloom.sparse import Pattern

MATRICES = ("ASI", "DEL", "PAC", "ROA", "LIV", "PAP", "SER", "ORK", "KRO", "MYC")
ROW_PANELS = (1024, 256, 64)

BARRIER: Mapping[tuple[str, int], Sequence[float]] = {
    ("spmm", 32): (22.8, 41.1, 4.3, 31.7, 24.2, 0, 1, -29.6, -12.6, 0),
    ("sddmm", 32): (9, 6.5, 0.6, 5, -15, 0, 0.6, -48.3, -1.2, 0),
    ("spmm", 128): (80.5, 76.6, 12.8, 56.2, 34, 47.7, 9.4, -57.1, -37, 0),
    ("sddmm", 128): (19.6, 37.8, 8.2, 22.9, -16.9, 13.2, -3.8, -53.7, -36.9, 0),
}
"""ISCA'23 table 5: percent of time that barriers add at the middle tile sizes; by (operation, width) and matrix."""

BYPASS: Mapping[tuple[str, int], Sequence[float]] = {
    ("spmm", 32): (-7, -6.7, 4.2, -2.3, -0.8, 13.9, -1.8, -17.2, 169.2, 0.7),
    ("sddmm", 32): (-3.2, 0.1, -0.3, -1.2, -6.8, 0.2, -0.1, -7, 0.2, 0.1),
    ("spmm", 128): (-9.9, -10.4, -9, -12.2, -0.7, -7.1, -14.4, -32.9, -6.3, -1.9),
    ("sddmm", 128): (-4.5, -0.3, -1.1, -1.9, -13.2, -6.3, -12.8, -18.7, -8.4, -2.7),
}
"""ISCA'23 table 6: percent of time that bypassing the r matrix adds to the best of all other options."""

GAIN: Mapping[tuple[str, int], Sequence[float]] = {
    ("spmm", 32): (1.08, 1.08, 1.00, 1.02, 1.01, 1.15, 1.02, 1.44, 1.16, 3.55),
    ("sddmm", 32): (1.03, 1.00, 1.00, 1.01, 1.14, 1.00, 1.01, 2.01, 1.07, 2.56),
    ("spmm", 128): (1.18, 1.13, 1.12, 1.13, 1.07, 1.12, 1.21, 1.48, 1.34, 4.76),
    ("sddmm", 128): (1.05, 1.02, 1.01, 1.02, 1.31, 1.14, 1.21, 2.63, 1.57, 4.91),
}
"""Speedup of the best options over SPADE Base, ratios of the bars of ISCA'23 figure 9."""

TILES: Mapping[str, Sequence[Sequence[float]]] = {
    "KRO": ((0.80, 0.89, 0.93), (0.86, 0.91, 0.92), (1, 0.92, 0.93)),
    "DEL": ((0.92, 0.92, 0.92), (0.89, 0.89, 0.84), (1, 1, 0.93)),
    "MYC": ((0.99, 1, 1), (0.45, 0.45, 0.45), (0.21, 0.23, 0.23)),
}
"""ISCA'23 figure 11, SpMM of width 32: time over the worst; rows as ROW_PANELS, columns small, middle and all."""

Times = Mapping[tuple[int, str, int, int], float]
"""(row panel, column panel name, barrier, bypass) -> seconds."""


def scaled(machine: Machine, factor: int) -> Machine:
    """Scale a machine to 1/factor of the elements (and with them of L2 and LLC) and of the DRAM bandwidth."""
    return replace(machine, pes=machine.pes // factor, dram_gb_per_s=machine.dram_gb_per_s / factor)


def symmetric(rows: np.ndarray, cols: np.ndarray, size: int) -> Pattern:
    """Make a pattern of edges in both directions."""
    return Pattern.from_coo(np.concatenate([rows, cols]), np.concatenate([cols, rows]), (size, size))


def kronecker(levels: int, degree: float, seed: int) -> Pattern:
    """Draw a Graph500 graph: 2**levels shuffled rows, about `degree` nonzeros per row, repeated edges included."""
    rng = np.random.default_rng(seed)
    size, edges = 1 << levels, int(degree / 2 * (1 << levels))
    rows, cols = np.zeros(edges, dtype=np.int64), np.zeros(edges, dtype=np.int64)
    for _ in range(levels):
        draw = rng.random(edges)
        lower = draw >= 0.57 + 0.19
        right = ((draw >= 0.57) & ~lower) | (draw >= 0.57 + 0.19 + 0.19)
        rows, cols = 2 * rows + lower, 2 * cols + right
    order = rng.permutation(size)
    return symmetric(order[rows], order[cols], size)


def mycielskian(order: int) -> Pattern:
    """Build the Mycielskian graph of chromatic number `order`: 3 * 2**(order - 2) - 1 rows, exactly as published."""
    edges, size = np.array([[0, 1]]), 2
    for _ in range(order - 2):
        left, right = edges.T
        copies = np.arange(size)
        apex = np.stack([copies + size, np.full(size, 2 * size)], axis=1)
        edges = np.concatenate([edges, np.stack([left, right + size], 1), np.stack([right, left + size], 1), apex])
        size = 2 * size + 1
    return symmetric(edges[:, 0], edges[:, 1], size)


def delaunay(points: int, seed: int) -> Pattern:
    """Triangulate random points in the unit square, numbered cell by cell, cells in random order.

    The 16 points of a cell were chosen for the traffic that the times of HotTiles imply for delaunay_n22, after effects
    with a numbering along a Z curve had been seen. A third of the columns of a row is far away (0.43 in delaunay_n15);
    panels of 256 and 1024 rows meet as many columns as in delaunay_n15 within 10 %.
    """
    rng = np.random.default_rng(seed)
    position = rng.random((points, 2))
    side = max(1, round((points / 16) ** 0.5))
    cell = (position * side).astype(np.int64)
    order = np.argsort(rng.permutation(side * side)[cell[:, 0] * side + cell[:, 1]], kind="stable")
    corners = Delaunay(position[order]).simplices.astype(np.int64)
    return symmetric(corners.ravel(), np.roll(corners, 1, axis=1).ravel(), points)


def road(rows: int, seed: int) -> Pattern:
    """Draw a lattice that has lost 40 % of its edges: about 2.4 nonzeros per row.

    Rows are numbered by blocks of 16 x 16 in random order, like regions of a map; chosen after effects with ordered
    blocks of 64 x 64 had been seen. 6 % of the columns are far away (11 % in luxembourg_osm); panels of
    256 and 1024 rows meet as many columns as in luxembourg_osm within 20 %.
    """
    rng = np.random.default_rng(seed)
    side, block = int(rows**0.5), 16
    across, down = np.meshgrid(np.arange(side), np.arange(side))
    blocks = -(-side // block)
    rank = rng.permutation(blocks * blocks)[(down // block) * blocks + across // block]
    number = np.empty(side * side, dtype=np.int64)
    number[np.lexsort(((across % block).ravel(), (down % block).ravel(), rank.ravel()))] = np.arange(side * side)
    number = number.reshape(side, side)
    left = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
    right = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
    kept = rng.random(left.size) < 0.6
    return symmetric(left[kept], right[kept], side * side)


def grid_3d(extents: tuple[int, int, int], *, reach: float, unknowns: int = 1) -> Pattern:
    """Build a lattice whose points are connected to all others within `reach`, with several unknowns per point."""
    number = np.arange(np.prod(extents)).reshape(extents)
    steps = np.arange(-int(reach), int(reach) + 1)
    rows, cols = [], []
    for step in np.stack(np.meshgrid(steps, steps, steps), -1).reshape(-1, 3):
        if not 0 < np.sum(step**2) <= reach**2:
            continue
        here = tuple(slice(max(0, -s), extent - max(0, s)) for s, extent in zip(step, extents, strict=True))
        there = tuple(slice(max(0, s), extent - max(0, -s)) for s, extent in zip(step, extents, strict=True))
        rows.append(number[here].ravel())
        cols.append(number[there].ravel())
    row, col = np.concatenate(rows), np.concatenate(cols)
    pairs = np.arange(unknowns)
    row = (row[:, None, None] * unknowns + pairs[:, None]).repeat(unknowns, axis=2).ravel()
    col = (col[:, None, None] * unknowns + pairs[None, :]).repeat(unknowns, axis=1).ravel()
    return Pattern.from_coo(row, col, (number.size * unknowns,) * 2)


def social(rows: int, degree: float, *, inside: float, group: int, seed: int) -> Pattern:
    """Draw a graph of heavy-tailed degrees; a share `inside` of the edges stays within `group` neighbouring rows."""
    rng = np.random.default_rng(seed)
    edges = int(rows * degree / 2)
    weight = rng.pareto(2.2, rows) + 1
    ends = rng.choice(rows, size=edges, p=weight / weight.sum())
    near = (ends + rng.integers(-group, group + 1, edges)) % rows
    far = rng.choice(rows, size=edges, p=weight / weight.sum())
    return symmetric(ends, np.where(rng.random(edges) < inside, near, far), rows)


def _cube(rows: float) -> tuple[int, int, int]:
    side = max(2, round(rows ** (1 / 3)))
    return side, side, side


def _packing(rows: float) -> tuple[int, int, int]:
    side = max(2, round((rows / 5) ** (1 / 3)))
    return 5 * side, side, side


STANDINS: Mapping[str, Callable[[int], Pattern]] = MappingProxyType({
    "ASI": lambda factor: road(11_900_000 // factor, seed=0),
    "DEL": lambda factor: delaunay(16_800_000 // factor, seed=0),
    "PAC": lambda factor: grid_3d(_packing(2_100_000 / factor), reach=1.5),
    "ROA": lambda factor: road(23_900_000 // factor, seed=1),
    "LIV": lambda factor: social(4_000_000 // factor, 17.3, inside=0.5, group=200, seed=0),
    "PAP": lambda factor: social(434_000 // factor, 74, inside=0.9, group=60, seed=0),
    "SER": lambda factor: grid_3d(_cube(1_400_000 / factor / 3), reach=1.5, unknowns=3),
    "ORK": lambda factor: social(3_100_000 // factor, 76, inside=0.1, group=200, seed=0),
    "KRO": lambda factor: kronecker(20 - round(np.log2(factor)), 89.2, seed=0),
    "MYC": lambda factor: mycielskian(17 - round(np.log2(factor))),
})
"""Matrix of ISCA'23 table 4 -> its stand-in at 1/factor of the rows."""


@dataclass(frozen=True)
class PublishedEffect:
    """One published number and ours: the effect of an option, in percent of time or as a speedup.

    Args:
        table: "barrier", "bypass", "gain" or "tiles".
        setting: the tile for "tiles", such as "1024 x small"; else empty.
    """

    table: str
    matrix: str
    op: str
    width: int
    setting: str
    paper: float
    ours: float


def effect_records(
    machine: Machine, *, factor: int, matrices: Sequence[str] = MATRICES, widths: Sequence[int] = (32, 128),
) -> list[PublishedEffect]:
    """Search the options of ISCA'23 table 3 on stand-ins at 1/factor of the size.

    Args:
        machine: the full machine, preset isca224; it is scaled here.
        factor: a divisor of its elements into whole clusters.
    """
    small = scaled(machine, factor)
    records: list[PublishedEffect] = []
    for name in matrices:
        pattern = STANDINS[name](factor)
        for width in widths:
            times = _searched(pattern, (*ROW_PANELS, 16) if name == "MYC" else ROW_PANELS, width, small, factor)
            for op, found in times.items():
                records.extend(_records(name, op, width, found))
    return records


def _searched(
    pattern: Pattern, row_panels: Sequence[int], width: int, machine: Machine, factor: int,
) -> dict[str, Times]:
    """Simulate all options; column panels shrink with the matrix, so that their number and nonzeros do not change."""
    panels = {"small": 262_144 // width // factor, "middle": 16_777_216 // width // factor, "all": "all"}
    points, configs = [], []
    for rows in row_panels:
        for panel, cols in panels.items():
            for barrier in (0, 1) if panel == "middle" else (0,):
                for bypass in (0, 1):
                    points.append((rows, panel, barrier, bypass))
                    configs.append(_config(rows, cols, width, barrier, bypass))
    times = simulate_ops(pattern, {op: configs for op in ("spmm", "sddmm")}, width=width, machines=[machine])
    return {op: dict(zip(points, (float(value) for value in found[0]), strict=True)) for op, found in times.items()}


def _config(rows: int, cols: int | str, width: int, barrier: int, bypass: int) -> Config:
    names = ("row_panel", "column_panel", "split", "barrier", "bypass", "reorder")
    return Config("spade", tuple(zip(names, (rows, cols, width, barrier, bypass, 0), strict=True)))


def _records(name: str, op: str, width: int, times: Times) -> Iterator[PublishedEffect]:
    index = MATRICES.index(name)
    barrier = 100 * (times[256, "middle", 1, 0] / times[256, "middle", 0, 0] - 1)
    yield PublishedEffect("barrier", name, op, width, "", BARRIER[op, width][index], barrier)
    best = min((point for point in times if point[3] == 0), key=times.__getitem__)
    bypass = 100 * (times[(*best[:3], 1)] / times[best] - 1)
    yield PublishedEffect("bypass", name, op, width, "", BYPASS[op, width][index], bypass)
    gain = times[256, "all", 0, 0] / min(times.values())
    yield PublishedEffect("gain", name, op, width, "", GAIN[op, width][index], gain)
    if op == "spmm" and width == 32 and name in TILES:
        grid = np.array([[times[rows, panel, 0, 0] for panel in ("small", "middle", "all")] for rows in ROW_PANELS])
        for (i, j), value in np.ndenumerate(grid / grid.max()):
            setting = f"{ROW_PANELS[i]} x {('small', 'middle', 'all')[j]}"
            yield PublishedEffect("tiles", name, op, width, setting, TILES[name][i][j], float(value))
