"""What the inspector must know of a program: which rows iterations read, and how many bytes they move (Equation 4).

Every distinct access counts once, by what its subscripts name:

    the marked iterator itself                  a row per iteration:       B[i, k], A.p[i]
    an element of an index array                a row per distinct index:  D1[A.i[e], k]
    an iterator whose bounds are indices        an element per index:      A.x[e], A.i[e]
    none of these                               nothing: it stays in cache

A row is all that follows the first subscript. The second loop does not bring again the rows that the first wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from sparloom.fusion.program import Access, Nest, Program
from sparloom.ir import DTYPES, Expr, Load, Ref, walk

__all__ = ["Traffic", "traffic"]

Unit = Literal["iteration", "column", "nonzero"]


@dataclass(frozen=True)
class Traffic:
    """Bytes that a loop moves per iteration, per distinct index and per index."""

    iteration_bytes: int
    column_bytes: int
    nonzero_bytes: int


def traffic(program: Program, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Traffic, Traffic]:
    """Count what each of the loops moves.

    Args:
        shapes: of all arrays of the program.
    """
    made = {access.array for access in program.first.accesses if access.writes}
    return _traffic(program, program.first, shapes, set()), _traffic(program, program.second, shapes, made)


def _traffic(program: Program, nest: Nest, shapes: Mapping[str, tuple[int, ...]], made: set[str]) -> Traffic:
    moved: dict[tuple[str, Unit], int] = {}
    for access in nest.accesses:
        unit = _unit(access, nest)
        if unit is not None and not (unit == "iteration" and access.array in made):
            element = np.dtype(DTYPES[program.array(access.array).type.scalar]).itemsize
            row = 1 if unit == "nonzero" else prod(shapes[access.array][1:])
            moved[access.array, unit] = row * element
    total = {unit: sum(each for (_, of), each in moved.items() if of == unit) for unit in Unit.__args__}
    return Traffic(total["iteration"], total["column"], total["nonzero"])


def _unit(access: Access, nest: Nest) -> Unit | None:
    parts = [node for each in access.subscripts if each is not None for node in walk(each)]
    if any(isinstance(node, Load) for node in parts) or None in access.subscripts:
        return "column"
    names = {node.name for node in parts if isinstance(node, Ref)}
    if nest.iterator.name in names:
        return "iteration"
    listed = {loop.name for loop in access.loops if _loads(loop.lo) or _loads(loop.hi)}
    return "nonzero" if names & listed else None


def _loads(expr: Expr | None) -> bool:
    return expr is not None and any(isinstance(node, Load) for node in walk(expr))
