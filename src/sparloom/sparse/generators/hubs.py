"""A sparse background with a few hub rows that read a large part of all columns."""

import numpy as np

from sparloom.sparse.generators.draw import NNZ_LIMIT, below, between
from sparloom.sparse.pattern import Pattern

__all__ = ["hub_rows"]


def hub_rows(rows: int, rng: np.random.Generator) -> Pattern:
    """Give 1 to 8 rows between 5 and 50 % of the columns, the others 1 to 4 positions anywhere; some stay empty."""
    links = rows * between(1, 4, rng)
    first, second = [below(rows, links, rng)], [below(rows, links, rng)]
    for _ in range(between(1, 8, rng)):
        length = min(max(1, int(rows * (0.05 + 0.45 * rng.random()))), NNZ_LIMIT // 8)
        first.append(np.full(length, between(0, rows - 1, rng)))
        second.append(below(rows, length, rng))
    return Pattern.from_coo(np.concatenate(first), np.concatenate(second), (rows, rows))
