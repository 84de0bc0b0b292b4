"""All elements of a tensor at once: their coordinates, and where they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparloom.ragged.dimensions import Axis
from sparloom.ragged.evaluate import evaluate, place
from sparloom.ragged.layout import offset_steps, stored
from sparloom.ragged.structure import Structure
from sparloom.ragged.tensor import Tensor

__all__ = ["coordinates", "places"]


def coordinates(axes: Sequence[Axis], structure: Structure) -> dict[str, np.ndarray]:
    """List the coordinates of all elements, in order: an int64 array per dimension; padding is left out."""
    found: dict[str, np.ndarray] = {}
    count = 1
    for dim, extent in axes:
        extents = np.broadcast_to(np.asarray(evaluate(extent, found, structure.table), dtype=np.int64), (count,))
        ends = np.cumsum(extents)
        count = int(ends[-1]) if ends.size else 0
        found = {name: np.repeat(values, extents) for name, values in found.items()}
        found[dim.name] = np.arange(count) - np.repeat(ends - extents, extents)
    return found


def places(tensor: Tensor, structure: Structure) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Give coordinates and flat index of all elements."""
    found = coordinates(tensor.axes, structure)
    count = next(iter(found.values())).size if found else 1
    kept = stored(tensor)
    at = {dim.name: evaluate(expr, found, structure.table)
          for (dim, _), expr in zip(kept.axes, kept.places, strict=True)}
    flat = place(offset_steps(tensor), at, structure.table)
    return found, np.broadcast_to(np.asarray(flat, dtype=np.int64), (count,))
