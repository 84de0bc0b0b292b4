"""Pruned weights of a neural network: rectangular, scattered, with rows and columns of unequal importance."""

import numpy as np

from sparloom.sparse.generators.draw import NNZ_LIMIT, pick
from sparloom.sparse.pattern import Pattern

__all__ = ["pruned"]


def pruned(rows: int, rng: np.random.Generator) -> Pattern:
    """Keep 2 to 30 % of the weights of a layer with a quarter to four times as many inputs as `rows`, at most 4096.

    The chance of a weight is the product of an importance of its row and one of its column, each within 50 % of one.
    """
    density = pick((0.02, 0.05, 0.1, 0.3), rng)
    limit = max(16, int(NNZ_LIMIT / (rows * density)))
    cols = max(1, min(int(rows * pick((0.25, 1.0, 4.0), rng)), 4096, limit))
    column_chance = 0.5 + rng.random(cols)
    row_chance = density * (0.5 + rng.random(rows))
    step = max(1, 2**22 // cols)  # rows at once: bounds the memory
    kept_rows, kept_cols = [], []
    for start in range(0, rows, step):
        chance = row_chance[start : start + step, None] * column_chance
        row, col = np.nonzero(rng.random(chance.shape) < chance)
        kept_rows.append(row + start)
        kept_cols.append(col)
    return Pattern.from_coo(np.concatenate(kept_rows), np.concatenate(kept_cols), (rows, cols))
