"""Random graphs and other irregular patterns: uniform, recursive, heavy-tailed, clustered, hub rows, pruned weights.

Draws are the same on every machine: they take doubles of PCG64 and only operations that IEEE 754 rounds exactly.
"""

from collections.abc import Sequence

import numpy as np
import scipy.spatial

from sparloom.sparse.pattern import Pattern

NNZ_LIMIT = 1_000_000  # approximate maximum of the nonzeros of a synthetic matrix
QUADRANTS = (0.57, 0.76, 0.95)  # cumulative Graph500 probabilities 0.57, 0.19, 0.19, 0.05


def below(limit: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` integers from 0 to limit - 1."""
    return (rng.random(count) * limit).astype(np.int64)


def between(low: int, high: int, rng: np.random.Generator) -> int:
    """Draw one integer from low to high, both included; low where high is less."""
    return low + int(rng.random() * max(1, high - low + 1))


def pick(options: Sequence[float], rng: np.random.Generator) -> float:
    """Draw one of the options."""
    return options[int(rng.random() * len(options))]


def permutation(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a permutation of 0 to count - 1."""
    return np.argsort(rng.random(count), kind="stable")


def symmetric(rows: np.ndarray, cols: np.ndarray, extent: int) -> Pattern:
    """Make a symmetric square pattern with a full diagonal from pairs of row and column."""
    every = np.arange(extent)
    return Pattern.from_coo(
        np.concatenate((rows, cols, every)), np.concatenate((cols, rows, every)), (extent, extent))


def relabel(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """Apply a random permutation to the rows and columns of a square pattern."""
    label = permutation(pattern.rows, rng)
    return Pattern.from_coo(label[pattern.row_ids()], label[pattern.indices], pattern.shape)


def uniform(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw 2 to 32 positions per row on average, all equally likely (Erdos-Renyi)."""
    links = rows * min(between(2, 32, rng), max(2, NNZ_LIMIT // rows))
    return Pattern.from_coo(below(rows, links, rng), below(rows, links, rng), (rows, rows))


def kronecker(rows: int, rng: np.random.Generator) -> Pattern:
    """Choose quadrants recursively (R-MAT), so that few rows, with low indices, hold most of the nonzeros."""
    levels = max(1, (rows - 1).bit_length())
    links = rows * min(between(4, 16, rng), max(4, NNZ_LIMIT // rows))
    first, second = recursive_links(levels, links, rng)
    inside = (first < rows) & (second < rows)
    return Pattern.from_coo(first[inside], second[inside], (rows, rows))


def heavy_tail(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw undirected edges between vertices whose degrees follow a power of their rank, in random order."""
    links = rows * min(between(3, 10, rng), max(3, NNZ_LIMIT // (2 * rows)))
    start, end = _ranks(rows, links, rng), _ranks(rows, links, rng)
    return relabel(symmetric(start, end, rows), rng)


def small_world(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect each vertex of a ring with the next 2 to 6; rewire 1 to 30 % of the edges (Watts-Strogatz)."""
    reach = between(2, 6, rng)
    start = np.repeat(np.arange(rows), reach)
    end = (start + np.tile(np.arange(1, reach + 1), rows)) % rows
    moved = rng.random(start.size) < pick((0.01, 0.1, 0.3), rng)
    return symmetric(start, np.where(moved, below(rows, start.size, rng), end), rows)


def recursive_links(levels: int, links: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows and columns of positions in a square of 2^levels rows by choosing quadrants recursively."""
    first, second = np.zeros(links, dtype=np.int64), np.zeros(links, dtype=np.int64)
    for _ in range(levels):
        quadrant = np.searchsorted(QUADRANTS, rng.random(links), side="right")
        first, second = 2 * first + quadrant // 2, 2 * second + quadrant % 2
    return first, second


def _ranks(limit: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ranks with a probability of about rank^(-2/3): the cube of a uniform draw."""
    draw = rng.random(count)
    return (draw * draw * draw * limit).astype(np.int64)


def blocks(rows: int, rng: np.random.Generator) -> Pattern:
    """Fill diagonal blocks of one size, 4 to 64; the last block may be smaller."""
    size = min(between(4, 64, rng), max(4, NNZ_LIMIT // rows))
    every = np.arange(rows)
    cols = (every // size * size)[:, None] + np.arange(size)
    inside = cols < rows
    return Pattern.from_coo(np.repeat(every, size)[inside.ravel()], cols[inside], (rows, rows))


def communities(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw edges, most of them inside communities of 20 to 500; number the vertices in order or at random."""
    size = between(20, min(500, max(20, rows // 4)), rng)
    links = rows * min(between(3, 12, rng), max(3, NNZ_LIMIT // (2 * rows)))
    start = below(rows, links, rng)
    inside = rng.random(links) < pick((0.7, 0.9, 0.97), rng)
    neighbour = np.minimum(start // size * size + below(size, links, rng), rows - 1)
    end = np.where(inside, neighbour, below(rows, links, rng))
    pattern = symmetric(start, end, rows)
    return relabel(pattern, rng) if rng.random() < 0.5 else pattern


def hub_rows(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw 1 to 4 positions per row on average, and for 1 to 8 hub rows positions in 5 to 50 % of all columns.

    Repeated positions count once; some rows stay empty.
    """
    links = rows * between(1, 4, rng)
    first, second = [below(rows, links, rng)], [below(rows, links, rng)]
    for _ in range(between(1, 8, rng)):
        length = min(max(1, int(rows * (0.05 + 0.45 * rng.random()))), NNZ_LIMIT // 8)
        first.append(np.full(length, between(0, rows - 1, rng)))
        second.append(below(rows, length, rng))
    return Pattern.from_coo(np.concatenate(first), np.concatenate(second), (rows, rows))


def mycielskian(rows: int, rng: np.random.Generator) -> Pattern:
    """Apply Mycielski's construction 3 to 7 times (fewer for small `rows`) to a cycle, giving about `rows` vertices.

    One step adds a copy v' of every vertex v and one more vertex w; an edge (u, v) adds the edges (u', v) and (u, v'),
    and w is adjacent to all copies.
    """
    steps, max_steps = 1, between(3, 7, rng)
    while steps < max_steps and (rows + 1) >> (steps + 1) > 4 and 2 * rows * 1.5 ** (steps + 1) < NNZ_LIMIT:
        steps += 1
    extent = max(3, (rows + 1) // 2**steps - 1)
    first = np.arange(extent)
    second = (first + 1) % extent
    for _ in range(steps):
        copies = np.arange(extent, 2 * extent)
        first, second = (
            np.concatenate((first, first + extent, second + extent, copies)),
            np.concatenate((second, second, first, np.full(extent, 2 * extent))))
        extent = 2 * extent + 1
    return Pattern.from_coo(
        np.concatenate((first, second)), np.concatenate((second, first)), (extent, extent))


def nearest(rows: int, rng: np.random.Generator) -> Pattern:
    """Connect each of `rows` random points in 2 to 5 dimensions to itself and its 3 to 6 nearest neighbours."""
    points = rng.random((rows, between(2, 5, rng)))
    count = min(between(4, 7, rng), rows)
    _, found = scipy.spatial.cKDTree(points).query(points, k=[*range(1, count + 1)])
    return Pattern.from_coo(np.repeat(np.arange(rows), count), found.ravel(), (rows, rows))


def pruned(rows: int, rng: np.random.Generator) -> Pattern:
    """Keep 2 to 30 % of the weights of a layer with a quarter to four times as many inputs as `rows`, at most 4096.

    The probability of a weight is the density times a factor of its row and one of its column, each 0.5 to 1.5.
    """
    density = pick((0.02, 0.05, 0.1, 0.3), rng)
    limit = max(16, int(NNZ_LIMIT / (rows * density)))
    cols = max(1, min(int(rows * pick((0.25, 1.0, 4.0), rng)), 4096, limit))
    column_chance = 0.5 + rng.random(cols)
    row_chance = density * (0.5 + rng.random(rows))
    step = max(1, 2**22 // cols)  # rows per step, to bound the memory
    kept_rows, kept_cols = [], []
    for start in range(0, rows, step):
        chance = row_chance[start : start + step, None] * column_chance
        row, col = np.nonzero(rng.random(chance.shape) < chance)
        kept_rows.append(row + start)
        kept_cols.append(col)
    return Pattern.from_coo(np.concatenate(kept_rows), np.concatenate(kept_cols), (rows, cols))
