"""Schedule loops: order, tiles, fusion, execution by threads and vector lanes, load balance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, fresh, simplify_expr
from sparloom.ragged.dimensions import constant_bound, free_names, is_multiple, substitute, without_inner
from sparloom.ragged.nests import Kind, Loop, Nest, Program
from sparloom.ragged.tensor import At, FusedInner, FusedOuter, Order

MAX_UNROLLED = 64


def reorder(program: Program, nest: str, order: Sequence[str]) -> Program:
    """Change the order of loops; those not named keep their positions.

    `for i: for j: for k: S`, order (k, i)  ->  `for k: for j: for i: S`

    Legal if every vloop stays inside the loops on which its extent depends, parallel loops stay outside reductions, a
    simd loop stays innermost, and operations computed at a loop keep the loops around them. Iterations of the result
    are independent; a reduction adds in another order.

    Source: CoRa §4.1 (a vloop is not moved out of a loop that it depends on).
    """
    found = program.nest(nest)
    if len(set(order)) < len(order):
        raise IllegalSchedule(f"{nest}: order {', '.join(order)} names a loop twice")
    positions = sorted(found.position(name) for name in order)
    loops = list(found.loops)
    for position, name in zip(positions, order, strict=True):
        loops[position] = found.loop(name)
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
            raise IllegalSchedule(f"{nest}: loop {first.name} cannot be outermost, since {nest} runs concurrently with "
                                  f"others by its parallel loop: keep that outside")
    return program.with_nest(changed)


def check_order(nest: Nest) -> None:
    """Check the order of loops."""
    names = _names(nest)
    dense = [loop for loop in nest.loops if loop.kind == "dense"]
    if dense and (dense != list(nest.loops[-3:]) or [loop.reduces for loop in dense] != [False, False, True]):
        raise IllegalSchedule(f"{nest.name}: loops {', '.join(loop.name for loop in dense)} are one tile product, "
                              f"which stays innermost and whole: offload last")
    _check_carried(nest)
    for position, loop in enumerate(nest.loops):
        late = sorted(free_names(nest.expanded(loop.extent)) & set(names[position:]))
        if late:
            raise IllegalSchedule(f"{nest.name}: vloop {loop.name} cannot stand outside of loop {late[0]}, on which "
                                  f"its extent depends: keep {late[0]} outside, or fuse the two")
        outer = [each.name for each in nest.loops[:position] if each.reduces]
        if loop.kind == "parallel" and (loop.reduces or outer):
            raise IllegalSchedule(f"{nest.name}: parallel loop {loop.name} cannot stand inside the reduction "
                                  f"{outer[0] if outer else loop.name}: move it outside")
        if loop.kind == "shared":
            _check_shared(nest, position)
        if loop.kind == "simd" and position < len(names) - 1:
            raise IllegalSchedule(f"{nest.name}: simd loop {loop.name} cannot stand outside of loop {names[-1]}: only "
                                  f"the innermost loop is vectorised")
        if loop.kind == "simd" and loop.name in dict(nest.attached):
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be vectorised, since "
                                  f"{dict(nest.attached)[loop.name].name} is computed at it: split it first")
        if loop.kind == "simd" and loop.reduces and _result_loop_in_reduction(nest):
            crossed = _result_loop_in_reduction(nest)
            raise IllegalSchedule(f"{nest.name}: simd loop {loop.name} of the reduction cannot stand inside loop "
                                  f"{crossed}: move {crossed} out of the reduction, or vectorise it")


def _check_carried(nest: Nest) -> None:
    """Check that loops over which an attached nest accumulates are serial."""
    for _, each in nest.attached:
        carried = {name for dim, _ in each.operation.reduced for name in free_names(nest.expanded(each.expanded(dim)))}
        for loop in nest.loops:
            if loop.name in carried - {own.name for own in each.loops} and loop.kind != "serial":
                raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be {loop.kind}, since {each.name}, "
                                      f"computed in it, accumulates over its iterations: leave it serial")


def _check_shared(nest: Nest, position: int) -> None:
    loop, around = nest.loops[position], nest.loops[position - 1] if position else None
    if loop.reduces or around is None or around.kind != "parallel":
        raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be shared by the threads of a block, since it is "
                              f"not a loop of the result directly in a parallel one: make the loop around parallel "
                              "first")
    for at, each in nest.attached:
        if at == around.name:
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be shared by the threads of a block, since "
                                  f"{each.name} is computed at loop {at}: compute it at {loop.name}")


def _result_loop_in_reduction(nest: Nest) -> str | None:
    """Find a loop of the result inside the reduction."""
    first = next((position for position, loop in enumerate(nest.loops) if loop.reduces), len(nest.loops))
    return next((loop.name for loop in nest.loops[first:] if not loop.reduces), None)


def _names(nest: Nest) -> list[str]:
    return [loop.name for loop in nest.loops]


def split(program: Program, nest: str, loop: str, factor: int) -> Program:
    """Split a constant or variable loop into tiles of `factor` iterations.

    `for i in 0 .. n: S  ->
    for i_outer in 0 .. ceil(n / factor): for i_inner in 0 .. min(factor, n - i_outer * factor): S`, with
    i = i_outer * factor + i_inner. If factor provably divides n, a constant or a padded extent, the inner loop has
    exactly `factor` iterations, as `unroll` requires. Extents that are constant within a tile no longer depend on
    i_inner.

    Always legal, since the order stays; only a parallel loop around a shared one cannot be split. The outer loop
    inherits the kinds parallel and shared, the inner one simd and unrolled. Operations computed at the loop are
    computed at the inner one.

    Source: CoRa §4.1.
    """
    found = program.nest(nest)
    old = found.loop(loop)
    check_positive(f"{nest}: loop {loop} cannot be split into tiles of", factor)
    taken = taken_names(program, nest)
    outer, inner = fresh(f"{loop}_outer", taken), fresh(f"{loop}_inner", taken)
    if is_multiple(old.extent, factor):
        tiles = _quotient(old.extent, factor)
        extent: Expr = Const(factor)
    else:
        tiles = simplify_expr(Binary("//", old.extent + (factor - 1), Const(factor)))
        extent = Binary("min", Const(factor), simplify_expr(old.extent - Ref(outer) * factor))
    outside = old.kind in ("parallel", "shared")
    loops = (Loop(outer, tiles, old.kind if outside else "serial", old.reduces, old.chunk),
             Loop(inner, extent, "serial" if outside else old.kind, old.reduces))
    value = simplify_expr(Ref(outer) * factor + Ref(inner))
    changed = replace_loops(found, (loop,), loops, defined=((loop, value),))
    changed = replace(changed, loops=tuple(
        each if each in loops else _same_in_tile(each, {loop: value}, inner, factor) for each in changed.loops))
    check_order(changed)
    return program.with_nest(changed)


def check_positive(what: str, value: object) -> None:
    """Refuse a factor or multiple that is no positive int; `what` cannot be done with it."""
    if not isinstance(value, int) or value < 1:
        raise IllegalSchedule(f"{what} {value!r}: use a positive int")


def replace_loops(nest: Nest, old: tuple[str, ...], new: tuple[Loop, ...],
                  *, defined: tuple[tuple[str, Expr], ...]) -> Nest:
    """Replace neighbouring loops, which become defined names; attached nests move to the last new loop."""
    start = nest.position(old[0])
    loops = (*nest.loops[:start], *new, *nest.loops[start + len(old):])
    attached = tuple((new[-1].name if at in old else at, each) for at, each in nest.attached)
    return replace(nest, loops=loops, defined=(*nest.defined, *defined), attached=attached)


def taken_names(program: Program, nest: str) -> set[str]:
    """Return the names that a new loop cannot have: those of tensors, of nests, and of loops in the same tree."""
    trees = [list(each.tree()) for launch in program.launches for each in launch.nests]
    near = [each for tree in trees if any(other.name == nest for other in tree) for each in tree]
    own = {name for each in near for name in each.names()}
    return {*program.tensors(), *(each.name for each in program.nests()), *own}


def _same_in_tile(loop: Loop, values: dict[str, Expr], inner: str, factor: int) -> Loop:
    """Write the extent in terms of the outer loop alone, if possible."""
    extent = without_inner(substitute(loop.extent, values), inner, factor)
    changed = free_names(loop.extent) & set(values) and inner not in free_names(extent)
    return replace(loop, extent=extent) if changed else loop


def _quotient(extent: Expr, factor: int) -> Expr:
    match extent:
        case Binary("*", a, Const(value)) if value % factor == 0:
            return simplify_expr(a * (value // factor))
    return simplify_expr(Binary("//", extent, Const(factor)))


def fuse(program: Program, nest: str, outer: str, inner: str) -> Program:
    """Fuse a loop with the one directly inside it.

    `for o in 0 .. n: for i in 0 .. l(o): S  ->  for f in 0 .. F: S`, F = sum of l(o), with o = outer(f) and i =
    inner(f) from tables of the prelude. If l does not depend on o, o = f // l and i = f % l need no table. Tensors
    stored in the same order are then accessed at f alone.

    Legal if the loops are neighbours, both of the result or both of the reduction, both serial, and l depends on no
    third loop.

    Source: CoRa §5.1, Figure 6. Departure: no bulk padding (§7.2), since tile products may have any extent.
    """
    found = program.nest(nest)
    first, second = found.loop(outer), found.loop(inner)
    _check_pair(found, first, second)
    extent, size = found.expanded(second.extent), found.expanded(first.extent)
    fused = fresh(f"{outer}_{inner}", taken_names(program, nest))
    if outer not in free_names(extent):
        total = simplify_expr(first.extent * second.extent)
        values = (Binary("//", Ref(fused), second.extent), Binary("%", Ref(fused), second.extent))
    else:
        others = sorted((free_names(extent) | free_names(size)) - {outer})
        if others:
            raise IllegalSchedule(f"{nest}: loops {outer} and {inner} cannot be fused, since their extents depend on "
                                  f"{others[0]}: fuse {others[0]} and {outer} first")
        names = {outer: Ref("x0")}
        maps = [each(size, substitute(extent, names)) for each in (FusedOuter, FusedInner)]
        total = maps[0].total
        values = tuple(At(each, (Ref(fused),)) for each in maps)
    loop = Loop(fused, total, reduces=first.reduces)
    changed = replace_loops(found, (outer, inner), (loop,), defined=((outer, values[0]), (inner, values[1])))
    check_order(changed)
    return program.with_nest(changed)


def fuse_neighbours(program: Program, nest: str, first: int, count: int) -> tuple[Program, str]:
    """Fuse `count` neighbouring loops from index `first` on; also return the name of the fused loop."""
    for _ in range(count - 1):
        outer, inner = (loop.name for loop in program.nest(nest).loops[first : first + 2])
        program = fuse(program, nest, outer, inner)
    return program, program.nest(nest).loops[first].name


def _check_pair(nest: Nest, first: Loop, second: Loop) -> None:
    names = [loop.name for loop in nest.loops]
    if nest.position(second.name) != nest.position(first.name) + 1:
        raise IllegalSchedule(f"{nest.name}: loop {second.name} is not directly inside of {first.name} in "
                              f"{', '.join(names)}: reorder them first")
    if first.reduces != second.reduces:
        raise IllegalSchedule(f"{nest.name}: loops {first.name} and {second.name} cannot be fused, since one is of the "
                              f"result and one of the reduction")
    for loop in (first, second):
        if loop.kind != "serial":
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} is {loop.kind}: fuse before that")
    for at, each in nest.attached:
        if at == first.name:
            raise IllegalSchedule(f"{nest.name}: loop {first.name} cannot be fused, since {each.name} is computed at "
                                  f"it: fuse before compute_at")


def parallel(program: Program, nest: str, loop: str, *, chunk: int = 1) -> Program:
    """Run iterations in parallel: `for i: S  ->  parallel for i: S`, on CPU threads or CUDA threads.

    Legal if the loop is one of the result and in no reduction, no other loop around or inside it is parallel, and the
    nest is not computed at a loop of another one. Iterations write different elements, and operations computed at an
    outer loop are complete before they start.

    Args:
        chunk: iterations that a CPU thread takes at a time.
    """
    if chunk < 1:
        raise IllegalSchedule(f"{nest}: parallel loop {loop} in chunks of {chunk}: use at least 1")
    found = program.nest(nest)
    for tree in (each.tree() for launch in program.launches for each in launch.nests):
        nests = list(tree)
        if found in nests:
            busy = [(each.name, other.name) for each in nests for other in each.loops
                    if other.kind == "parallel" and (each.name, other.name) != (nest, loop)]
            if busy:
                raise IllegalSchedule(f"{nest}: loop {loop} cannot be parallel besides the parallel loop {busy[0][1]} "
                                      f"of {busy[0][0]}: fuse the two, or make one serial")
            if nests[0] is not found:
                raise IllegalSchedule(f"{nest}: loop {loop} cannot be parallel, since {nest} is computed at a loop of "
                                      f"{nests[0].name}: make a loop of {nests[0].name} parallel")
    return _with_kind(program, nest, loop, "parallel", chunk=chunk)


def bind_threads(program: Program, nest: str, loop: str) -> Program:
    """Distribute a loop over the threads of a GPU block: `parallel for i: for j: S  ->  parallel for i: shared for j:
    S`.

    Iterations of the parallel loop become blocks. On a CPU the loop runs as before.

    Legal if the loop is directly inside the parallel one and belongs to the result, nothing is computed at the parallel
    loop, and the nest does not run concurrently with others.

    Source: CoRa §4.1 (`bind`).
    """
    if any(len(launch.nests) > 1 and program.nest(nest) in launch.nests for launch in program.launches):
        raise IllegalSchedule(f"{nest}: loop {loop} cannot be shared by the threads of a block, since {nest} runs "
                              f"concurrently with others: bind threads to one that runs alone")
    return _with_kind(program, nest, loop, "shared")


def vectorise(program: Program, nest: str, loop: str) -> Program:
    """Run iterations in vector lanes: `for i: S  ->  simd for i: S`.

    Legal if the loop is innermost and, if it is a reduction loop, no loop of the result is inside the reduction. A
    reduction then adds in another order.
    """
    return _with_kind(program, nest, loop, "simd")


def vectorise_innermost(program: Program, *nests: str) -> Program:
    """Vectorise the innermost loop of each nest."""
    for nest in nests:
        program = vectorise(program, nest, program.nest(nest).loops[-1].name)
    return program


def unroll(program: Program, nest: str, loop: str) -> Program:
    """Let the C or CUDA compiler unroll a loop: `for i in 0 .. 4: S  ->  S[i := 0]; ..; S[i := 3]`.

    Legal if the extent is a constant up to 64: split first, by a factor that divides the extent or after padding.
    """
    extent = program.nest(nest).loop(loop).extent
    if not isinstance(extent, Const) or extent.value > MAX_UNROLLED:
        bound = constant_bound(extent)
        count = (str(extent.value) if isinstance(extent, Const)
                 else "a variable number of" if bound is None else f"up to {bound}")
        raise IllegalSchedule(f"{nest}: loop {loop} has {count} iterations; unrolled loops have a constant number up "
                              f"to {MAX_UNROLLED}: split it by a factor that divides its extent, or pad it first")
    return _with_kind(program, nest, loop, "unrolled")


def one_block_per_row(program: Program, nest: str, count: int) -> Program:
    """Fuse the first loops into one parallel loop, and the other loops of the result into one shared by a block's
    threads.
    """
    inside = sum(not loop.reduces for loop in program.nest(nest).loops) - count
    program, row = fuse_neighbours(program, nest, 0, count)
    program = parallel(program, nest, row)
    if not inside:
        return program
    program, column = fuse_neighbours(program, nest, 1, inside)
    return bind_threads(program, nest, column)


def _with_kind(program: Program, nest: str, loop: str, kind: Kind, *, chunk: int = 1) -> Program:
    found = program.nest(nest)
    old = found.loop(loop)
    if old.kind not in ("serial", kind):
        raise IllegalSchedule(f"{nest}: loop {loop} is already {old.kind}: split it to have both")
    changed = replace(found, loops=tuple(
        replace(each, kind=kind, chunk=chunk) if each is old else each for each in found.loops))
    check_order(changed)
    return program.with_nest(changed)


def remap(program: Program, nest: str, loop: str, work: Expr | None = None) -> Program:
    """Run the iterations with the most work first.

    `parallel for i in 0 .. n: S(i)  ->  parallel for i_th in 0 .. n: S(order(i_th))`, where `order` sorts iterations by
    falling work; the prelude builds it. Threads take iterations in turn, so large ones do not run last.

    Legal if the extent of the loop depends on no other loop: iterations of the result are independent, and a reduction
    adds in another order. Remap before splitting, or split first and remap the outer loop; loops of a tile product
    stay.

    Args:
        work: work of iteration i, over `i` alone, in any unit; by default the number of inner iterations as far as it
            depends on `i` alone.

    Raises:
        IllegalSchedule: the extent or the work depends on another loop, or the loop is dense.

    Source: CoRa §4.1 (thread remapping), §7.1. Departure: the order is by work, the same for any number of threads.
    """
    found = program.nest(nest)
    old = found.loop(loop)
    if old.kind == "dense":
        raise IllegalSchedule(f"{nest}: loop {loop} cannot be remapped, since it belongs to a tile product, whose "
                              f"elements are evenly spaced: remap a loop outside of it")
    extent = found.expanded(old.extent)
    measure = _trips(found, loop) if work is None else found.expanded(work)
    for what, expr, allowed in (("extent", extent, set()), ("work", measure, {loop})):
        others = sorted(free_names(expr) - allowed)
        if others:
            raise IllegalSchedule(f"{nest}: loop {loop} cannot be remapped, since its {what} depends on {others[0]}: "
                                  f"fuse the two first, or give a work of {loop} alone")
    mapped = fresh(f"{loop}_th", taken_names(program, nest))
    order = Order(extent, simplify_expr(substitute(measure, {loop: Ref("x0")})))
    changed = replace_loops(found, (loop,), (replace(old, name=mapped),),
                            defined=((loop, At(order, (Ref(mapped),))),))
    return program.with_nest(changed)


def _trips(nest: Nest, loop: str) -> Expr:
    """Multiply the extents of the inner loops that depend on this loop alone."""
    inside = [nest.expanded(each.extent) for each in nest.loops[nest.position(loop) + 1:]]
    own = [extent for extent in inside if free_names(extent) == {loop}]
    return reduce(lambda total, extent: total * extent, own) if own else Const(1)
