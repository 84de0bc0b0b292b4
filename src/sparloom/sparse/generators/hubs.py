"""A sparse background with a few hub rows that read a large part of all columns."""

import numpy as np

from sparloom.sparse.generators.draw import NNZ_LIMIT, below, between
from sparloom.sparse.pattern import Pattern

__all__ = ["hub_rows"]


def hub_rows(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw 1 to 4 positions per row on average, and for 1 to 8 rows further 5 to 50 % as many as there are columns.

    Repeated positions count once; some rows stay empty.
    """
    links = rows * between(1, 4, rng)
    first, second = [below(rows, links, rng)], [below(rows, links, rng)]
    for _ in range(between(1, 8, rng)):
        length = min(max(1, int(rows * (0.05 + 0.45 * rng.random()))), NNZ_LIMIT // 8)
        first.append(np.full(length, between(0, rows - 1, rng)))
        second.append(below(rows, length, rng))
    return Pattern.from_coo(np.concatenate(first), np.concatenate(second), (rows, rows))
