"""Road-like networks: crossings on a ragged grid, joined by chains of points with two neighbours."""

import math

import numpy as np

from sparloom.sparse.generators.draw import below, symmetric
from sparloom.sparse.pattern import Pattern

__all__ = ["roads"]

KEPT = 0.75  # of the streets between neighbouring crossings
LONGEST = 4  # points on a street, less one
GROWTH = 1 + 2 * KEPT * (LONGEST - 1) / 2  # points per crossing, on average


def roads(rows: int, rng: np.random.Generator) -> Pattern:
    """Number the crossings row by row and the points of a street behind its first crossing; about `rows` points."""
    width = max(1, math.isqrt(int(rows / GROWTH)))
    crossing = np.arange(width * width)
    east, south = crossing[crossing % width < width - 1], crossing[: width * (width - 1)]
    start, end = np.concatenate((east, south)), np.concatenate((east + 1, south + width))
    kept = rng.random(start.size) < KEPT
    start, end = start[kept], end[kept]
    points = below(LONGEST, start.size, rng)
    street = np.repeat(np.arange(start.size), points)
    step = np.arange(street.size) - np.repeat(np.cumsum(points) - points, points)
    inner = width * width + np.arange(street.size)
    before = np.where(step == 0, start[street], inner - 1)
    last = inner[step == points[street] - 1]
    straight = points == 0
    first = np.concatenate((before, last, start[straight]))
    second = np.concatenate((inner, end[street[step == points[street] - 1]], end[straight]))
    extent = width * width + street.size
    place = np.argsort(np.concatenate((crossing, start[street])), kind="stable")
    label = np.empty(extent, dtype=np.int64)
    label[place] = np.arange(extent)
    return symmetric(label[first], label[second], extent)
