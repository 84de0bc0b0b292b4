"""How often the innermost statements of a program run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sparloom.ir import Expr, Ref
from sparloom.ragged.coordinates import coordinates
from sparloom.ragged.dimensions import Axis, expanded, free
from sparloom.ragged.evaluate import evaluate
from sparloom.ragged.program import Loop, Nest, Program
from sparloom.ragged.structure import Structure

__all__ = ["iterations"]


def iterations(program: Program, structure: Structure) -> dict[str, int]:
    """Count the iterations of every nest as it is scheduled, padding and what is computed again included.

    Returns:
        By name of the nest; of a reduction, how often something is added.
    """
    found: dict[str, int] = {}
    for launch in program.launches:
        for nest in launch.nests:
            _count(nest, (), {}, structure=structure, found=found)
    return found


def _count(nest: Nest, around: tuple[Loop, ...], defined: Mapping[str, Expr], *, structure: Structure,
           found: dict[str, int]) -> None:
    known = {**defined, **dict(nest.defined)}
    axes = [(Ref(loop.name), expanded(loop.extent, known)) for loop in (*around, *nest.loops)]
    found[nest.name] = _volume(axes, structure)
    for at, each in nest.attached:
        _count(each, (*around, *nest.loops[: nest.position(at) + 1]), known, structure=structure, found=found)


def _volume(axes: Sequence[Axis], structure: Structure) -> int:
    """Add up over the loops that others depend on; the rest are factors."""
    read = {name for _, extent in axes for name in free(extent)}
    found = coordinates([axis for axis in axes if axis[0].name in read], structure)
    counts = np.ones(next((values.size for values in found.values()), 1), dtype=np.int64)
    for dim, extent in axes:
        if dim.name not in read:
            counts = counts * evaluate(extent, found, structure.table)
    return int(counts.sum())
