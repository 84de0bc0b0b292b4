"""Finite elements on unstructured meshes: Delaunay triangulations of graded point clouds."""

import itertools

import numpy as np
import scipy.spatial

from sparloom.sparse.generators.draw import pick, relabel, symmetric
from sparloom.sparse.pattern import Pattern

__all__ = ["block_mesh", "shuffled_mesh", "tetrahedra", "triangles"]

UNKNOWNS = 3  # per vertex of a block mesh: displacements


def triangles(rows: int, rng: np.random.Generator) -> Pattern:
    """Couple the vertices of a plane mesh that share an edge; vertices are numbered strip by strip."""
    return _mesh(rows, 2, rng)


def shuffled_mesh(rows: int, rng: np.random.Generator) -> Pattern:
    """Number the vertices of a plane mesh at random, as some mesh generators leave them."""
    return relabel(_mesh(rows, 2, rng), rng)


def tetrahedra(rows: int, rng: np.random.Generator) -> Pattern:
    """Couple the vertices of a spatial mesh that share an edge."""
    return _mesh(rows, 3, rng)


def block_mesh(rows: int, rng: np.random.Generator) -> Pattern:
    """Give every vertex of a plane mesh three unknowns, all coupled: dense 3 x 3 blocks."""
    mesh = _mesh(max(1, rows // UNKNOWNS), 2, rng)
    block_rows, block_cols = mesh.row_ids().astype(np.int64), mesh.indices.astype(np.int64)
    inner = np.array(list(itertools.product(range(UNKNOWNS), repeat=2)))
    every_row = (block_rows[:, None] * UNKNOWNS + inner[:, 0]).ravel()
    every_col = (block_cols[:, None] * UNKNOWNS + inner[:, 1]).ravel()
    extent = mesh.rows * UNKNOWNS
    return Pattern.from_coo(every_row, every_col, (extent, extent))


def _mesh(count: int, dimension: int, rng: np.random.Generator) -> Pattern:
    points = rng.random((count, dimension))
    grading = pick((0.0, 0.5, 0.9), rng)  # 0: even; towards 1: fine near one side
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
