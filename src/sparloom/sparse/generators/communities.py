"""Groups that are dense inside: diagonal blocks, and communities with links between them."""

import numpy as np

from sparloom.sparse.generators.draw import NNZ_LIMIT, below, between, pick, relabel, symmetric
from sparloom.sparse.pattern import Pattern

__all__ = ["blocks", "communities"]


def blocks(rows: int, rng: np.random.Generator) -> Pattern:
    """Fill diagonal blocks of one size, 4 to 64; the last block holds what is left."""
    size = min(between(4, 64, rng), max(4, NNZ_LIMIT // rows))
    every = np.arange(rows)
    cols = (every // size * size)[:, None] + np.arange(size)
    inside = cols < rows
    return Pattern.from_coo(np.repeat(every, size)[inside.ravel()], cols[inside], (rows, rows))


def communities(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw links, most of them inside communities of 20 to 500, and number the members at random or in a row."""
    size = between(20, min(500, max(20, rows // 4)), rng)
    links = rows * min(between(3, 12, rng), max(3, NNZ_LIMIT // (2 * rows)))
    start = below(rows, links, rng)
    inside = rng.random(links) < pick((0.7, 0.9, 0.97), rng)
    neighbour = np.minimum(start // size * size + below(size, links, rng), rows - 1)
    end = np.where(inside, neighbour, below(rows, links, rng))
    pattern = symmetric(start, end, rows)
    return relabel(pattern, rng) if rng.random() < 0.5 else pattern
