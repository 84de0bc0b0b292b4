"""Orders of iterations by name, and whether it is worth a try to make one."""

import importlib.util
from collections.abc import Callable, Mapping

import numpy as np

from sparloom.fusion import bandwidth_order, metis_order, partition_order
from sparloom.sparse import Pattern

__all__ = ["ORDERS", "has_places", "make_order", "metis_is_installed"]

ORDERS = ("natural", "bandwidth", "partition", "metis")

ROWS_PER_PART = 4096  # larger tiles hold whole parts, smaller ones halves of them
STEPS = 12  # of a walk in a graph that reaches half of it only where there are no places to speak of


def make_order(name: str, pattern: Pattern) -> np.ndarray | None:
    """Make an order, (rows,) int32: iteration -> row; None for the natural one.

    Raises:
        Unsupported: METIS is not installed.
    """
    return None if name == "natural" else _MADE[name](pattern)


def metis_is_installed() -> bool:
    """Whether the order "metis" can be made."""
    return importlib.util.find_spec("pymetis") is not None


def has_places(pattern: Pattern) -> bool:
    """Whether a graph looks like one that can be cut into parts: few steps from a row do not reach half of all rows.

    In a mesh of any size they stay near; in a random or a social graph they are everywhere, and an order by parts costs
    much and fuses nothing. The walk begins at a longest row. Looks at O(nonzeros reached).
    """
    reached = np.zeros(pattern.rows, bool)
    edge = pattern.row_lengths().argmax(keepdims=True)
    reached[edge] = True
    for _ in range(STEPS):
        found = np.zeros(pattern.rows, bool)
        found[pattern.indices[pattern.nonzeros_of(edge)]] = True
        edge = np.flatnonzero(found & ~reached)
        reached |= found
    return bool(2 * np.count_nonzero(reached) < pattern.rows)


def _parts(pattern: Pattern) -> int:
    return max(1, round(pattern.rows / ROWS_PER_PART))


def _partition(pattern: Pattern) -> np.ndarray:
    """Within a part rows stay in their order: the matrices are not moved, and runs of rows are read at once."""
    parts = _parts(pattern)
    order = partition_order(pattern, parts=parts)
    for part in range(parts):
        order[part * pattern.rows // parts : (part + 1) * pattern.rows // parts].sort()
    return order


_MADE: Mapping[str, Callable[[Pattern], np.ndarray]] = {
    "bandwidth": bandwidth_order,
    "partition": _partition,
    "metis": lambda pattern: metis_order(pattern, parts=_parts(pattern)),
}
