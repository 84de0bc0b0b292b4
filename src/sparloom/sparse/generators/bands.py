"""Bands around the diagonal, in their natural order, scrambled, and with an arrow head."""

import numpy as np

from sparloom.sparse.generators.draw import NNZ_LIMIT, below, between, pick, relabel, symmetric
from sparloom.sparse.pattern import Pattern

__all__ = ["arrow", "banded", "scrambled_band"]


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
    """Renumber a band at random: its order is lost, but can be found again."""
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
