"""Reductions whose start is an operation of its own."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Const, fresh
from sparloom.ragged.nest_code import NEUTRAL
from sparloom.ragged.program import Launch, Loop, Nest, Program
from sparloom.ragged.split import taken_names

__all__ = ["decompose_reduction"]


def decompose_reduction(program: Program, nest: str) -> Program:
    """Let a reduction begin in a launch of its own.

    `for i: (t[i] = 0; for k: t[i] += S)  ->  for i: t[i] = 0;  for i: for k: t[i] += S`

    They are named `<nest>_start` and `<nest>_rest`; loops of the rest may stand in any order without begining anew,
    also around other nests: see `compute_with`.

    Legal when the nest is whole and unscheduled, and its value is the reduction, nothing else being made of it.

    Raises:
        IllegalSchedule: it is not.

    Source: TVM's decompose_reduction; CoRa §4.1 splits operations, not what they begin with.
    """
    found = program.nest(nest)
    operation, reduction = found.operation, found.operation.reduction
    plain = tuple(Loop(dim.name, extent, reduces=(dim, extent) in operation.reduced) for dim, extent in found.axes)
    if Launch((found,)) not in program.launches or found != Nest(nest, operation, plain):
        raise IllegalSchedule(f"{nest} cannot be decomposed, since it is scheduled, or in parts: decompose first")
    if reduction is None or operation.value != reduction:
        raise IllegalSchedule(f"{nest} cannot be decomposed, since its value is not a reduction alone: move the "
                              f"rest to an operation of its own")
    taken = taken_names(program, nest)
    neutral = Const(NEUTRAL[reduction.op], operation.output.type)
    start = Nest(fresh(f"{nest}_start", taken), replace(operation, value=neutral),
                 tuple(loop for loop in plain if not loop.reduces))
    rest = replace(found, name=fresh(f"{nest}_rest", taken), begins=False)
    place = program.launches.index(Launch((found,)))
    parts = (Launch((start,)), Launch((rest,)))
    return replace(program, launches=(*program.launches[:place], *parts, *program.launches[place + 1:]))
