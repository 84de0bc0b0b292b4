"""Change the order of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ragged.dimensions import free
from sparloom.ragged.program import Nest, Program

__all__ = ["reorder"]


def reorder(program: Program, nest: str, order: Sequence[str]) -> Program:
    """Put loops into another order; those that are not named keep their places.

    `for i: for j: for k: S`, order (k, i)  ->  `for k: for j: for i: S`

    Legal when every vloop stays inside of the loops that its extent depends on, parallel loops stay outside of
    reductions, a simd loop stays innermost, and what is computed at a loop keeps the loops around it. Iterations of the
    result are independent; a reduction adds in another order.

    Raises:
        IllegalSchedule: names the loops and the remedy.

    Source: CoRa §4.1 (a vloop is not moved out of a loop that it depends on).
    """
    found = program.nest(nest)
    if len(set(order)) < len(order):
        raise IllegalSchedule(f"{nest}: order {', '.join(order)} names a loop twice")
    places = sorted(found.position(name) for name in order)
    loops = list(found.loops)
    for place, name in zip(places, order, strict=True):
        loops[place] = found.loop(name)
    changed = replace(found, loops=tuple(loops))
    for at, each in found.attached:
        before, after = (set(_names(nest_)[: nest_.position(at) + 1]) for nest_ in (found, changed))
        if before != after:
            moved = min(before ^ after)
            raise IllegalSchedule(f"{nest}: loop {moved} cannot cross loop {at}, at which {each.name} is computed: "
                                  f"reorder before compute_at")
    check_order(changed)
    if any(len(launch.nests) > 1 and found in launch.nests for launch in program.launches):
        first = changed.loops[0]
        if first.kind != "parallel":
            raise IllegalSchedule(f"{nest}: loop {first.name} cannot be outermost, since {nest} runs at once with "
                                  f"others by its parallel loop: keep that outside")
    return program.with_nest(changed)


def check_order(nest: Nest) -> None:
    """Check the order of loops.

    Raises:
        IllegalSchedule: it breaks a dependence of extents, or a rule of the kinds of loops.
    """
    names = _names(nest)
    dense = [loop for loop in nest.loops if loop.kind == "dense"]
    if dense and (dense != list(nest.loops[-3:]) or [loop.reduces for loop in dense] != [False, False, True]):
        raise IllegalSchedule(f"{nest.name}: loops {', '.join(loop.name for loop in dense)} are one product of tiles, "
                              f"which stays innermost and whole: offload last")
    _check_carried(nest)
    for place, loop in enumerate(nest.loops):
        late = sorted(free(nest.expanded(loop.extent)) & set(names[place:]))
        if late:
            raise IllegalSchedule(f"{nest.name}: vloop {loop.name} cannot stand outside of loop {late[0]}, on which "
                                  f"its extent depends: keep {late[0]} outside, or fuse the two")
        outer = [each.name for each in nest.loops[:place] if each.reduces]
        if loop.kind == "parallel" and (loop.reduces or outer):
            raise IllegalSchedule(f"{nest.name}: parallel loop {loop.name} cannot stand inside the reduction "
                                  f"{outer[0] if outer else loop.name}: move it outside")
        if loop.kind == "shared":
            _check_shared(nest, place)
        if loop.kind == "simd" and place < len(names) - 1:
            raise IllegalSchedule(f"{nest.name}: simd loop {loop.name} cannot stand outside of loop {names[-1]}: only "
                                  f"the innermost loop is vectorised")
        if loop.kind == "simd" and loop.name in dict(nest.attached):
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be vectorised, since "
                                  f"{dict(nest.attached)[loop.name].name} is computed at it: split it first")
        if loop.kind == "simd" and loop.reduces and _crossed(nest):
            raise IllegalSchedule(f"{nest.name}: simd loop {loop.name} of the reduction cannot stand inside loop "
                                  f"{_crossed(nest)}: move {_crossed(nest)} out of the reduction, or vectorise it")


def _check_carried(nest: Nest) -> None:
    """Iterations that a nest inside adds up run one after the other."""
    for _, each in nest.attached:
        carried = {name for dim, _ in each.operation.reduced for name in free(nest.expanded(each.expanded(dim)))}
        for loop in nest.loops:
            if loop.name in carried - {own.name for own in each.loops} and loop.kind != "serial":
                raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be {loop.kind}, since {each.name}, "
                                      f"computed in it, adds up over its iterations: leave it serial")


def _check_shared(nest: Nest, place: int) -> None:
    loop, around = nest.loops[place], nest.loops[place - 1] if place else None
    if loop.reduces or around is None or around.kind != "parallel":
        raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be shared by the threads of a block, since it is "
                              f"not a loop of the result directly in a parallel one: make the loop around parallel "
                              "first")
    for at, each in nest.attached:
        if at == around.name:
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be shared by the threads of a block, since "
                                  f"{each.name} is computed at loop {at}: compute it at {loop.name}")


def _crossed(nest: Nest) -> str | None:
    """A loop of the result inside the reduction."""
    first = next((place for place, loop in enumerate(nest.loops) if loop.reduces), len(nest.loops))
    return next((loop.name for loop in nest.loops[first:] if not loop.reduces), None)


def _names(nest: Nest) -> list[str]:
    return [loop.name for loop in nest.loops]
