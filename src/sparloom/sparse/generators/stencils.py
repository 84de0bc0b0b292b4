"""Stencils on regular grids: finite differences and finite volumes in two and three dimensions."""

import itertools
import math

import numpy as np

from sparloom.sparse.generators.draw import between
from sparloom.sparse.pattern import Pattern

__all__ = ["box_2d", "box_3d", "star_2d", "star_3d", "stencil"]


def star_2d(rows: int, rng: np.random.Generator) -> Pattern:
    """Couple each point of a plane grid with its four neighbours; the grid is one to four times as long as wide."""
    return stencil(_plane(rows, rng), reach=1)


def box_2d(rows: int, rng: np.random.Generator) -> Pattern:
    """Couple each point of a plane grid with its eight neighbours."""
    return stencil(_plane(rows, rng), reach=2)


def star_3d(rows: int, rng: np.random.Generator) -> Pattern:
    """Couple each point of a spatial grid with its six neighbours."""
    return stencil(_space(rows, rng), reach=1)


def box_3d(rows: int, rng: np.random.Generator) -> Pattern:
    """Couple each point of a spatial grid with its 26 neighbours."""
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
    """Couple points whose coordinates differ by at most one each, and in at most `reach` coordinates."""
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
