"""Netlists of circuits: nets by cells, most nets short and local, a few reaching far."""

import numpy as np

from sparloom.sparse.generators.draw import below
from sparloom.sparse.pattern import Pattern

__all__ = ["netlist"]

LARGEST = 400  # cells on one net


def netlist(rows: int, rng: np.random.Generator) -> Pattern:
    """Draw `rows` nets over 0.7 to 1.3 times as many cells; sizes fall off with the square, from two on."""
    cells = max(2, int(rows * (0.7 + 0.6 * rng.random())))
    sizes = np.minimum(2 / np.sqrt(1 - rng.random(rows)), LARGEST).astype(np.int64)
    net = np.repeat(np.arange(rows), sizes)
    home = net * cells // rows
    near = home + below(64, net.size, rng) - 32
    far = below(cells, net.size, rng)
    cell = np.where(rng.random(net.size) < 0.9, near % cells, far)
    return Pattern.from_coo(net, cell, (rows, cells))
