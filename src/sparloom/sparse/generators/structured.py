"""Patterns of applications: bands, stencils, finite-element meshes, road networks, linear programs, netlists."""

import itertools
import math

import numpy as np
import scipy.spatial

from sparloom.sparse.generators.graphs import NNZ_LIMIT, below, between, pick, relabel, symmetric
from sparloom.sparse.pattern import Pattern

UNKNOWNS = 3  # per vertex of a block mesh: displacements
STREET_SHARE = 0.75  # of the pairs of adjacent crossings that a street joins
MAX_STREET = 4  # exclusive bound of the points on a street
POINTS_PER_CROSSING = 1 + 2 * STREET_SHARE * (MAX_STREET - 1) / 2  # expected, the crossing included
MAX_NET = 400  # cells on a net


def banded(rows: int, rng: np.random.Generator) -> Pattern:
    """Fill 30 to 100 % of a band of half width 2 to 32, symmetrically."""
    half = min(between(2, 32, rng), max(2, NNZ_LIMIT // (2 * rows)), rows - 1) if rows > 1 else 0
    share = pick((0.3, 0.6, 1.0), rng)
    first, second = [], []
    for distance in range(1, half + 1):
        lower = np.arange(distance, rows)
        kept = lower[rng.random(lower.size) < share]
        first.append(kept)
        second.append(kept - distance)
    empty = np.zeros(0, dtype=np.int64)
    return symmetric(np.concatenate([*first, empty]), np.concatenate([*second, empty]), rows)


def scrambled_band(rows: int, rng: np.random.Generator) -> Pattern:
    """Permute a band at random; reordering can restore its locality."""
    return relabel(banded(rows, rng), rng)


def arrow(rows: int, rng: np.random.Generator) -> Pattern:
    """Add one to four full rows and columns, and a few far couplings, to a narrow band."""
    head = min(between(1, 4, rng), max(1, NNZ_LIMIT // (4 * rows)), rows)
    every = np.arange(rows)
    first, second = [every[1:]], [every[:-1]]
    for row in range(head):
        first.append(np.full(rows, row))
        second.append(every)
    far = rows // 10
    first.append(below(rows, far, rng))
    second.append(below(rows, far, rng))
    return symmetric(np.concatenate(first), np.concatenate(second), rows)


def star_2d(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect each point of a 2-D grid with its four neighbours; the grid is one to four times as long as wide."""
    return stencil(_plane(rows, rng), reach=1)


def box_2d(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect each point of a 2-D grid with its eight neighbours."""
    return stencil(_plane(rows, rng), reach=2)


def star_3d(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect each point of a 3-D grid with its six neighbours."""
    return stencil(_space(rows, rng), reach=1)


def box_3d(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect each point of a 3-D grid with its 26 neighbours."""
    return stencil(_space(rows, rng), reach=3)


def _plane(rows: int, rng: np.random.Generator) -> tuple[int, int]:
    width = max(1, math.isqrt(rows // between(1, 4, rng)))
    return max(1, rows // width), width


def _space(rows: int, rng: np.random.Generator) -> tuple[int, int, int]:
    width, length = 1, between(1, 2, rng)
    while (width + 1) ** 3 * length <= rows:
        width += 1
    return max(1, rows // (width * width)), width, width


def stencil(extents: tuple[int, ...], reach: int) -> Pattern:
    """Connect points whose coordinates differ by at most one each, and in at most `reach` coordinates."""
    points = np.indices(extents).reshape(len(extents), -1)
    count = points.shape[1]
    rows, cols = [], []
    for offset in itertools.product((-1, 0, 1), repeat=len(extents)):
        if sum(map(abs, offset)) > reach:
            continue
        moved = points + np.array(offset)[:, None]
        inside = ((moved >= 0) & (moved < np.array(extents)[:, None])).all(axis=0)
        rows.append(np.flatnonzero(inside))
        cols.append(np.ravel_multi_index(tuple(moved[:, inside]), extents))
    return Pattern.from_coo(np.concatenate(rows), np.concatenate(cols), (count, count))


def triangles(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect vertices of a 2-D mesh that share an edge; vertices are numbered strip by strip."""
    return _mesh(rows, 2, rng)


def shuffled_mesh(rows: int, rng: np.random.Generator) -> Pattern:
    """Number the vertices of a 2-D mesh at random, as some mesh generators do."""
    return relabel(_mesh(rows, 2, rng), rng)


def tetrahedra(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect vertices of a 3-D mesh that share an edge."""
    return _mesh(rows, 3, rng)


def block_mesh(rows: int, rng: np.random.Generator) -> Pattern:
    """Expand every entry of a 2-D mesh to a dense 3 x 3 block: three unknowns per vertex."""
    mesh = _mesh(max(1, rows // UNKNOWNS), 2, rng)
    block_rows, block_cols = mesh.row_ids().astype(np.int64), mesh.indices.astype(np.int64)
    inner = np.array(list(itertools.product(range(UNKNOWNS), repeat=2)))
    every_row = (block_rows[:, None] * UNKNOWNS + inner[:, 0]).ravel()
    every_col = (block_cols[:, None] * UNKNOWNS + inner[:, 1]).ravel()
    extent = mesh.rows * UNKNOWNS
    return Pattern.from_coo(every_row, every_col, (extent, extent))


def _mesh(count: int, dimension: int, rng: np.random.Generator) -> Pattern:
    """Make a Delaunay triangulation of a graded point cloud."""
    points = rng.random((count, dimension))
    grading = pick((0.0, 0.5, 0.9), rng)  # 0: uniform; towards 1: finer near one side
    points[:, 0] *= (1 - grading) + grading * points[:, 0]
    strips = max(1, int(np.sqrt(count) / 4))
    order = np.lexsort((points[:, 1], (points[:, 0] * strips).astype(np.int64)))
    points = points[order]
    if count < dimension + 2:
        return symmetric(np.arange(count - 1), np.arange(1, count), count)
    cells = scipy.spatial.Delaunay(points).simplices.astype(np.int64)
    pairs = [cells[:, list(pair)] for pair in itertools.combinations(range(dimension + 1), 2)]
    edges = np.concatenate(pairs)
    return symmetric(edges[:, 0], edges[:, 1], count)


def roads(rows: int, rng: np.random.Generator) -> Pattern:
    """Make a road network of about `rows` points: crossings on a grid, joined by chains of points.

    Crossings are numbered row by row, and the points of a street after its first crossing.
    """
    width = max(1, math.isqrt(int(rows / POINTS_PER_CROSSING)))
    crossing = np.arange(width * width)
    east, south = crossing[crossing % width < width - 1], crossing[: width * (width - 1)]
    start, end = np.concatenate((east, south)), np.concatenate((east + 1, south + width))
    kept = rng.random(start.size) < STREET_SHARE
    start, end = start[kept], end[kept]
    points = below(MAX_STREET, start.size, rng)
    street = np.repeat(np.arange(start.size), points)
    step = np.arange(street.size) - np.repeat(np.cumsum(points) - points, points)
    inner = width * width + np.arange(street.size)
    before = np.where(step == 0, start[street], inner - 1)
    last = inner[step == points[street] - 1]
    straight = points == 0
    first = np.concatenate((before, last, start[straight]))
    second = np.concatenate((inner, end[street[step == points[street] - 1]], end[straight]))
    extent = width * width + street.size
    order = np.argsort(np.concatenate((crossing, start[street])), kind="stable")
    label = np.empty(extent, dtype=np.int64)
    label[order] = np.arange(extent)
    return symmetric(label[first], label[second], extent)


def staircase(rows: int, rng: np.random.Generator) -> Pattern:
    """Make a linear program in stages: `rows` constraints, one to three times as many variables, and slack columns.

    A variable is in 2 to 5 constraints of its stage; one in four is also in one of the next stage, and one in fifty in
    a coupling constraint among the first.
    """
    stages = between(4, 40, rng)
    height = max(1, rows // stages)
    variables = int(rows * (1 + 2 * rng.random()))
    stage = np.arange(variables) * stages // max(1, variables)
    entries = between(2, 5, rng)
    column = np.repeat(np.arange(variables), entries)
    row = np.minimum(np.repeat(stage, entries) * height + below(height, column.size, rng), rows - 1)
    linked = np.flatnonzero(rng.random(variables) < 0.25)
    next_row = np.minimum((stage[linked] + 1) * height + below(height, linked.size, rng), rows - 1)
    coupled = np.flatnonzero(rng.random(variables) < 0.02)
    coupling = below(min(rows, 1 + rows // 1000), coupled.size, rng)
    every = np.arange(rows)
    return Pattern.from_coo(
        np.concatenate((row, next_row, coupling, every)),
        np.concatenate((column, linked, coupled, variables + every)),
        (rows, variables + rows))


def netlist(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw `rows` nets over 0.7 to 1.3 times as many cells, mostly local; P(size > x) = (2 / x)^2, from 2 up."""
    cells = max(2, int(rows * (0.7 + 0.6 * rng.random())))
    sizes = np.minimum(2 / np.sqrt(1 - rng.random(rows)), MAX_NET).astype(np.int64)
    net = np.repeat(np.arange(rows), sizes)
    home = net * cells // rows
    near = home + below(64, net.size, rng) - 32
    far = below(cells, net.size, rng)
    cell = np.where(rng.random(net.size) < 0.9, near % cells, far)
    return Pattern.from_coo(net, cell, (rows, cells))
