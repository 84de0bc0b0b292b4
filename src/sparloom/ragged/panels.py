"""Operands copied to where products of tiles meet them in order."""

from __future__ import annotations

from sparloom.measure import vector_lanes
from sparloom.ragged.kinds import vectorise
from sparloom.ragged.program import Program
from sparloom.ragged.reorder import reorder
from sparloom.ragged.split import split
from sparloom.ragged.tensor_dimensions import reorder_dimensions, split_dimension

__all__ = ["PANEL", "copied_to_panels"]

PANEL = max(16, 2 * vector_lanes())
"""Columns of a panel: two vectors, at least 16: every number of the left operand that is loaded meets two."""


def copied_to_panels(given: Program, copy: str, *, panel: int, depth: int) -> Program:
    """Store a local copy of a matrix, (inner, col), in panels: [block of inner][panel of col][inner][col].

    A panel is written as a whole, columns in vector lanes.

    Args:
        copy: a producer that was computed at a loop of its consumer.
        panel: columns that lie side by side.
        depth: of a block of the reduction.
    """
    rows, cols = (loop.name for loop in given.nest(copy).loops)
    given = split_dimension(split_dimension(given, copy, "col", panel), copy, "inner", depth)
    given = reorder_dimensions(given, copy, ("inner_block", "col_block", "inner_within", "col_within"))
    given = split(given, copy, cols, panel)
    given = reorder(given, copy, (f"{cols}_outer", rows, f"{cols}_inner"))
    return vectorise(given, copy, f"{cols}_inner")
