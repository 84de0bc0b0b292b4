"""Nearest neighbours of scattered points: point clouds, similarity graphs."""

import numpy as np
import scipy.spatial

from sparloom.sparse.generators.draw import between
from sparloom.sparse.pattern import Pattern

__all__ = ["nearest"]


def nearest(rows: int, rng: np.random.Generator) -> Pattern:
    """Link each of `rows` points in 2 to 5 dimensions to itself and its 3 to 6 nearest; points come in no order."""
    points = rng.random((rows, between(2, 5, rng)))
    count = min(between(4, 7, rng), rows)
    _, found = scipy.spatial.cKDTree(points).query(points, k=[*range(1, count + 1)])
    return Pattern.from_coo(np.repeat(np.arange(rows), count), found.ravel(), (rows, rows))
