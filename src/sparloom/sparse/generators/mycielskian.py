"""Mycielski's construction: graphs without triangles that need ever more colours."""

import numpy as np

from sparloom.sparse.generators.draw import NNZ_LIMIT, between
from sparloom.sparse.pattern import Pattern

__all__ = ["mycielskian"]


def mycielskian(rows: int, rng: np.random.Generator) -> Pattern:
    """Apply the construction 3 to 7 times (less often where `rows` is small) to a cycle, giving nearly `rows` vertices.

    One step: vertices v become v and v'; an edge (u, v) also joins u' with v and u with v'; a new vertex joins all v'.
    """
    steps, most = 1, between(3, 7, rng)
    while steps < most and (rows + 1) >> (steps + 1) > 4 and 2 * rows * 1.5 ** (steps + 1) < NNZ_LIMIT:
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
