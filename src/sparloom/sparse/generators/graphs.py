"""Random graphs without geometry: uniform, recursive, heavy-tailed, small worlds."""

import numpy as np

from sparloom.sparse.generators.draw import NNZ_LIMIT, below, between, pick, relabel, symmetric
from sparloom.sparse.pattern import Pattern

__all__ = ["heavy_tail", "kronecker", "recursive_links", "small_world", "uniform"]

QUADRANTS = (0.57, 0.76, 0.95)  # running sums of the Graph500 shares 0.57, 0.19, 0.19, 0.05


def uniform(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw 2 to 32 positions per row on average, all equally likely (Erdos-Renyi)."""
    links = rows * min(between(2, 32, rng), max(2, NNZ_LIMIT // rows))
    return Pattern.from_coo(below(rows, links, rng), below(rows, links, rng), (rows, rows))


def kronecker(rows: int, rng: np.random.Generator) -> Pattern:
    """Choose a quadrant again and again (R-MAT): few rows hold most of the nonzeros, at low numbers."""
    levels = max(1, (rows - 1).bit_length())
    links = rows * min(between(4, 16, rng), max(4, NNZ_LIMIT // rows))
    first, second = recursive_links(levels, links, rng)
    inside = (first < rows) & (second < rows)
    return Pattern.from_coo(first[inside], second[inside], (rows, rows))


def heavy_tail(rows: int, rng: np.random.Generator) -> Pattern:
    """Link members whose popularity falls as a power of their rank, numbered at random, both ways."""
    links = rows * min(between(3, 10, rng), max(3, NNZ_LIMIT // (2 * rows)))
    start, end = _ranks(rows, links, rng), _ranks(rows, links, rng)
    return relabel(symmetric(start, end, rows), rng)


def small_world(rows: int, rng: np.random.Generator) -> Pattern:
    """Link each member of a ring with 2 to 6 followers; 1 to 30 % of the links lead elsewhere (Watts-Strogatz)."""
    reach = between(2, 6, rng)
    start = np.repeat(np.arange(rows), reach)
    end = (start + np.tile(np.arange(1, reach + 1), rows)) % rows
    moved = rng.random(start.size) < pick((0.01, 0.1, 0.3), rng)
    return symmetric(start, np.where(moved, below(rows, start.size, rng), end), rows)


def recursive_links(levels: int, links: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw positions in a square of 2^levels rows by choosing a quadrant again and again: rows and columns."""
    first, second = np.zeros(links, dtype=np.int64), np.zeros(links, dtype=np.int64)
    for _ in range(levels):
        quadrant = np.searchsorted(QUADRANTS, rng.random(links), side="right")
        first, second = 2 * first + quadrant // 2, 2 * second + quadrant % 2
    return first, second


def _ranks(limit: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ranks with a chance of about rank to the -2/3: the cube of a uniform draw."""
    draw = rng.random(count)
    return (draw * draw * draw * limit).astype(np.int64)
