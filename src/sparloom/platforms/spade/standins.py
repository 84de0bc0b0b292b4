"""Generated matrices that stand for those of the SPADE paper, at a fraction of their size.

A machine with 1/factor of the processing elements and bandwidth meets a matrix with 1/factor of the rows and the same
nonzeros per row, so that panels per element and bytes per cache stay what they were.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from scipy.spatial import Delaunay

from sparloom.platforms.spade.machine import Machine
from sparloom.sparse import Pattern

__all__ = ["STANDINS", "delaunay", "grid_3d", "kronecker", "mycielskian", "road", "scaled", "social", "symmetric"]


def scaled(machine: Machine, factor: int) -> Machine:
    """The machine with 1/factor of the elements (and with them of L2 and LLC) and of the DRAM bandwidth."""
    return replace(machine, pes=machine.pes // factor, dram_gb_per_s=machine.dram_gb_per_s / factor)


def symmetric(rows: np.ndarray, cols: np.ndarray, size: int) -> Pattern:
    """Edges in both directions."""
    return Pattern.from_coo(np.concatenate([rows, cols]), np.concatenate([cols, rows]), (size, size))


def kronecker(levels: int, degree: float, seed: int) -> Pattern:
    """Graph500: 2**levels rows, about `degree` nonzeros per row before repeated edges fall away, shuffled."""
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
    """The Mycielskian graph with chromatic number `order`: 3 * 2**(order - 2) - 1 rows, exactly as published."""
    edges, size = np.array([[0, 1]]), 2
    for _ in range(order - 2):
        left, right = edges.T
        copies = np.arange(size)
        apex = np.stack([copies + size, np.full(size, 2 * size)], axis=1)
        edges = np.concatenate([edges, np.stack([left, right + size], 1), np.stack([right, left + size], 1), apex])
        size = 2 * size + 1
    return symmetric(edges[:, 0], edges[:, 1], size)


def delaunay(points: int, seed: int) -> Pattern:
    """Triangulation of random points in the unit square, numbered cell by cell, cells in random order.

    The 16 points of a cell were chosen for the traffic that the times of HotTiles imply for delaunay_n22, after signs
    with a numbering along a Z curve had been seen. A third of the columns of a row is far away (0.43 in delaunay_n15);
    panels of 256 and 1024 rows meet as many columns as in delaunay_n15 within 10 %.
    """
    rng = np.random.default_rng(seed)
    place = rng.random((points, 2))
    side = max(1, round((points / 16) ** 0.5))
    cell = (place * side).astype(np.int64)
    order = np.argsort(rng.permutation(side * side)[cell[:, 0] * side + cell[:, 1]], kind="stable")
    corners = Delaunay(place[order]).simplices.astype(np.int64)
    return symmetric(corners.ravel(), np.roll(corners, 1, axis=1).ravel(), points)


def road(rows: int, seed: int) -> Pattern:
    """A lattice that has lost 40 % of its edges: about 2.4 nonzeros per row.

    Numbered by blocks of 16 x 16 that follow each other in random order, as regions of a map do; chosen after signs
    with ordered blocks of 64 x 64 had been seen. 6 % of the columns are far away (11 % in luxembourg_osm); panels of
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
    """A lattice whose points meet all others within `reach`, with a number of unknowns per point."""
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
    """Heavy-tailed degrees; a share `inside` of the edges stays within `group` neighbouring rows."""
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
