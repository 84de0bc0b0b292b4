"""Constraint matrices of linear programmes: stages, links between them, coupling rows, slack columns."""

import numpy as np

from sparloom.sparse.generators.draw import below, between
from sparloom.sparse.pattern import Pattern

__all__ = ["staircase"]


def staircase(rows: int, rng: np.random.Generator) -> Pattern:
    """Make `rows` constraints over one to three times as many variables, and a slack for every constraint.

    A variable enters 2 to 5 constraints of its stage, one in four also one of the next stage, one in fifty a coupling
    constraint among the first.
    """
    stages = between(4, 40, rng)
    height = max(1, rows // stages)
    variables = int(rows * (1 + 2 * rng.random()))
    stage = np.arange(variables) * stages // max(1, variables)
    entries = between(2, 5, rng)
    column = np.repeat(np.arange(variables), entries)
    row = np.minimum(np.repeat(stage, entries) * height + below(height, column.size, rng), rows - 1)
    linked = np.flatnonzero(rng.random(variables) < 0.25)
    next_row = np.minimum((stage[linked] + 1) * height + below(height, linked.size, rng), rows - 1)
    coupled = np.flatnonzero(rng.random(variables) < 0.02)
    coupling = below(min(rows, 1 + rows // 1000), coupled.size, rng)
    every = np.arange(rows)
    return Pattern.from_coo(
        np.concatenate((row, next_row, coupling, every)),
        np.concatenate((column, linked, coupled, variables + every)),
        (rows, variables + rows))
