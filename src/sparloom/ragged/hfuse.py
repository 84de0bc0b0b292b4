"""Horizontal fusion: several operations in one kernel, at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ragged.program import Launch, Nest, Program

__all__ = ["hfuse"]


def hfuse(program: Program, nests: Sequence[str]) -> Program:
    """Run the outermost loops of neighbouring operations as one.

    `parallel for i in 0 .. n: S; parallel for j in 0 .. m: T  ->  parallel for k in 0 .. n + m: if k < n: S[i := k]
    else: T[j := k - n]`

    Legal when the launches follow each other, every outermost loop is parallel, no operation reads what another writes,
    and operations that write one tensor are parts of it, not parts of its reduction.

    Raises:
        IllegalSchedule: names the operation or loop that is in the way.

    Source: CoRa §4.1, §7.3.
    """
    found = [program.nest(name) for name in nests]
    if len(found) < 2 or len(set(nests)) < len(found):
        raise IllegalSchedule(f"horizontal fusion of {', '.join(nests) or 'nothing'}: name at least two operations")
    singles = [Launch((nest,)) for nest in found]
    places = [program.launches.index(each) if each in program.launches else -1 for each in singles]
    if -1 in places or places != list(range(places[0], places[0] + len(places))):
        raise IllegalSchedule(f"operations {', '.join(nests)} are not launches of their own that follow each other in "
                              f"{', '.join(launch.name for launch in program.launches)}")
    for nest in found:
        if not nest.loops or nest.loops[0].kind != "parallel":
            raise IllegalSchedule(f"{nest.name} cannot run at once with others: its outermost loop "
                                  f"{nest.loops[0].name if nest.loops else ''} is not parallel: make it so")
        shared = next((loop.name for loop in nest.loops if loop.kind == "shared"), None)
        if shared is not None:
            raise IllegalSchedule(f"{nest.name} cannot run at once with others, since the threads of a block share its "
                                  f"loop {shared}: leave that serial")
    for number, one in enumerate(found):
        for other in found[number + 1:]:
            _check_apart(one, other)
    start = places[0]
    launches = (*program.launches[:start], Launch(tuple(found)), *program.launches[start + len(found):])
    return replace(program, launches=launches)


def _check_apart(one: Nest, other: Nest) -> None:
    for first, second in ((one, other), (other, one)):
        written = {each.operation.output.name for each in first.tree()}
        read = {read.tensor.name for each in second.tree() for read in each.operation.reads}
        if written & read:
            raise IllegalSchedule(f"{first.name} and {second.name} cannot run at once: {second.name} reads "
                                  f"{min(written & read)}")
    for pair in itertools.product(one.tree(), other.tree()):
        if pair[0].operation.output.name == pair[1].operation.output.name:
            for nest in pair:
                if not (nest.begins and nest.ends):
                    raise IllegalSchedule(f"{one.name} and {other.name} cannot run at once: {nest.name} is a part of "
                                          f"the reduction of {nest.operation.output.name}")
