"""Run one operation in the loops of another."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Expr, Ref, fresh
from sparloom.ragged.dimensions import free, replaced
from sparloom.ragged.program import Launch, Loop, Nest, Program
from sparloom.ragged.reorder import check_order
from sparloom.ragged.split import taken_names

__all__ = ["compute_with"]


def compute_with(program: Program, nest: str, into: str, loop: str) -> Program:
    """Run a nest in the loops of another, up to one of them; the rest of it runs before what is inside.

    `for i: for j: S; for i: for k: T`, S with T at i  ->  `for i: (for j: S; for k: T)`

    So what both read can be computed once, at a loop of T. The loops of S up to there take the names of those of T;
    others that are called as something in T are renamed, `j` to `j_at`. A loop of S that reduces may stand beside one
    of T that does not: then S adds up over its iterations, one after the other.

    Legal when the launches are neighbours; the outer loops of both have the same extents in the same order, and define
    the same dimensions where both have them; neither reads what the other writes; and S adds on top of what is stored
    if a loop that they share is in its reduction: see `decompose_reduction`.

    Raises:
        IllegalSchedule: names what is in the way, and the remedy.

    Source: Halide's compute_with; CoRa §7.2 needs it for no operator.
    """
    moved, onto = program.nest(nest), program.nest(into)
    _check_launches(program, moved, onto)
    place = onto.position(loop) + 1
    outer = onto.loops[:place]
    if any(each.reduces for each in outer) or onto.loop(loop).kind == "simd":
        raise IllegalSchedule(f"{nest} cannot be computed with {into} at loop {loop}, which is vectorised or in a "
                              f"reduction: take a loop outside of it")
    attached = _apart(_renamed(moved, onto, outer), onto, taken_names(program, into))
    _check_reduction(attached, moved.loops[:place], onto, loop=loop)
    _check_elements(attached, onto, outer)
    launches = tuple(launch for launch in program.launches if launch != Launch((moved,)))
    changed = replace(onto, attached=(*onto.attached, (loop, attached)))
    check_order(changed)
    return replace(program, launches=launches).with_nest(changed)


def _check_launches(program: Program, moved: Nest, onto: Nest) -> None:
    both = (Launch((moved,)), Launch((onto,)))
    places = [program.launches.index(each) if each in program.launches else -1 for each in both]
    if -1 in places or abs(places[0] - places[1]) != 1:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: they are not launches of their own "
                              f"that follow each other in {', '.join(launch.name for launch in program.launches)}")
    if moved.attached or moved.bulk or onto.bulk:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}, since something is computed in its "
                              f"loops, or one of both is padded in bulk: compute_with first, then compute_at")
    for first, second in ((moved, onto), (onto, moved)):
        written = {each.operation.output.name for each in first.tree()}
        read = {each.tensor.name for other in second.tree() for each in other.operation.reads}
        if written & read:
            raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: {second.name} reads "
                                  f"{min(written & read)}: use compute_at")


def _renamed(moved: Nest, onto: Nest, outer: tuple[Loop, ...]) -> Nest:
    """What is left of a nest in the loops of another, with their names."""
    names: dict[str, Expr] = {}
    for number, theirs in enumerate(outer):
        ours = moved.loops[number] if number < len(moved.loops) else None
        if ours is None or ours.kind not in ("serial", theirs.kind) or (
                replaced(moved.expanded(ours.extent), names) != onto.expanded(theirs.extent)):
            raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: its loop "
                                  f"{'(none)' if ours is None else ours.name} is not the loop {theirs.name} of "
                                  f"{onto.name}: split, fuse and reorder both alike")
        names[ours.name] = Ref(theirs.name)
    shared, known = {loop.name for loop in outer}, dict(onto.defined)
    defined: list[tuple[str, Expr]] = [
        (name, theirs) for name, theirs in names.items() if theirs != Ref(name) and name in _used(moved)]
    for name, expr in moved.defined:
        here = replaced(expr, names)
        if name in known and free(onto.expanded(Ref(name))) <= shared:
            if replaced(moved.expanded(Ref(name)), names) != onto.expanded(Ref(name)):
                raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: {name} stands for something "
                                      f"else there: give it another name in compute()")
            continue
        defined.append((name, here))
    loops = tuple(replace(each, extent=replaced(each.extent, names)) for each in moved.loops[len(outer):])
    taken = shared | {name for name in known if free(onto.expanded(Ref(name))) <= shared}
    both = sorted(({each.name for each in loops} | {name for name, _ in defined}) & taken)
    if both:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: {both[0]} stands for something else "
                              f"there: give it another name in compute()")
    return replace(moved, loops=loops, defined=tuple(defined))


def _apart(attached: Nest, onto: Nest, taken: set[str]) -> Nest:
    """Give loops names of their own."""
    both = [loop.name for loop in attached.loops if loop.name in onto.names()]
    names: dict[str, Expr] = {name: Ref(fresh(f"{name}_at", taken)) for name in both}
    loops = tuple(replace(each, name=names.get(each.name, Ref(each.name)).name, extent=replaced(each.extent, names))
                  for each in attached.loops)
    defined = tuple((name, replaced(expr, names)) for name, expr in attached.defined)
    return replace(attached, loops=loops, defined=(*defined, *names.items()))


def _used(nest: Nest) -> set[str]:
    """Names that loops stand for themselves, since nothing defines them: whole dimensions."""
    return {dim.name for dim, _ in nest.axes}


def _check_reduction(attached: Nest, shared: tuple[Loop, ...], onto: Nest, *, loop: str) -> None:
    reduces = [each.name for each in shared if each.reduces]
    if reduces and (attached.begins or attached.operation.value != attached.operation.reduction):
        raise IllegalSchedule(f"{attached.name} cannot be computed with {onto.name} at loop {loop}: its loop "
                              f"{reduces[0]} is of its reduction, which begins in it, or is not all of its value: "
                              f"decompose_reduction first")


def _check_elements(attached: Nest, onto: Nest, outer: tuple[Loop, ...]) -> None:
    """Let parts of one reduction follow each other for every element."""
    for at, other in (*onto.attached, (outer[-1].name, onto)):
        both = (other, attached)
        same = other.operation.output == attached.operation.output and other.operation.at == attached.operation.at
        if not same or all(each.begins and each.ends for each in both):
            continue
        first = onto.position(at) + 1 if other is not onto else 0
        around = {loop.name for loop in outer[:first]} if first <= len(outer) else set()
        if not around or not other.begins or attached.begins or not _alike(onto, both, around):
            raise IllegalSchedule(f"{attached.name} cannot be computed with {onto.name}: it goes on with the reduction "
                                  f"of {other.name}: compute that with {onto.name} first, at a loop outside of the "
                                  f"reduction, which decides about the same elements in both")


def _alike(onto: Nest, both: tuple[Nest, Nest], around: set[str]) -> bool:
    """Whether loops decide about the same coordinates of the result in two nests, and about nothing else."""
    decided: set[str] = set()
    for dim, _ in both[0].operation.axes:
        first, second = (onto.expanded(each.expanded(dim)) for each in both)
        touched = (free(first) | free(second)) & around
        if touched and (first != second or not free(first) <= around):
            return False
        decided |= touched
    reduced = {name for each in both for dim, _ in each.operation.reduced for name in free(each.expanded(dim))}
    return decided == around and not reduced & around
