"""Operation splitting: parts of an operation that are scheduled differently.

Horizontal fusion: several operations in one kernel, at once.

Reductions whose start is an operation of its own.

Leave out iterations in which a reduction adds nothing.

Compute element-wise results where they are read.

Leave dense inner tiles to a routine for products of matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, Select, fresh, pretty_expr, simplify_expr
from sparloom.ragged.definition import check_accesses
from sparloom.ragged.dimensions import Dim, constant_limit, free, integer, normal, replaced, without_inner
from sparloom.ragged.lowering import NEUTRAL, lower_launch
from sparloom.ragged.program import Launch, Loop, Nest, Program, Read, printable, rewritten
from sparloom.ragged.schedule.loops import check_order, replaced_loops, taken_names

__all__ = ["decompose_reduction", "hfuse", "inline", "narrow", "offload", "split_operation"]


def split_operation(program: Program, nest: str, loop: Dim, *, multiple: int | None = None,
                    point: Expr | int | None = None) -> Program:
    """Make two operations of one, by a point of one of its loops.

    `for i in 0 .. n: S(i)  ->  for i in 0 .. p: S(i); for i_rest in 0 .. n - p: S(i_rest + p)`

    They are named `<nest>_main` and `<nest>_rest` and define parts of the same tensor. With `multiple` p is the last
    multiple up to n, so that tiles of the main part are whole without padding. Where the loop is of the reduction, the
    main part stores what it has reduced, and the rest goes on from there.

    Legal when the loop runs along a whole dimension, unpadded, and nothing is computed at a loop of the nest.

    Args:
        point: the point itself, at least 0, over dimensions outside of the loop; it is cut off at n.

    Raises:
        IllegalSchedule: it is not legal, or not exactly one of multiple and point is given.

    Source: CoRa §4.1, Figure 5. Departure: the prototype does not split reductions.
    """
    found = program.nest(nest)
    old = found.loop(loop.name)
    if dict(found.axes).get(loop) != old.extent:
        raise IllegalSchedule(f"{nest}: loop {loop.name} is no longer a whole dimension: split the operation before "
                              f"other changes of it")
    if found.attached or Launch((found,)) not in program.launches:
        raise IllegalSchedule(f"{nest} cannot be split beside what is computed at its loops or at once with it: split "
                              f"it first")
    cut = _cut(found, old.extent, loop=loop, multiple=multiple, point=point)
    taken = taken_names(program, nest)
    rest_name = fresh(f"{loop.name}_rest", taken)
    shorter = replace(old, name=rest_name, extent=simplify_expr(old.extent - cut))
    main = replace(found, name=fresh(f"{nest}_main", taken), loops=tuple(
        replace(each, extent=cut) if each is old else each for each in found.loops))
    rest = replaced_loops(replace(found, name=fresh(f"{nest}_rest", taken)), (loop.name,), (shorter,),
                          defined=((loop.name, Ref(rest_name) + cut),))
    if old.reduces:
        main, rest = replace(main, ends=False), replace(rest, begins=False)
    place = program.launches.index(Launch((found,)))
    parts = (Launch((main,)), Launch((rest,)))
    return replace(program, launches=(*program.launches[:place], *parts, *program.launches[place + 1:]))


def _cut(nest: Nest, extent: Expr, *, loop: Dim, multiple: int | None, point: Expr | int | None) -> Expr:
    if (multiple is None) == (point is None):
        raise IllegalSchedule(f"{nest.name}: give either the multiple or the point at which to split {loop.name}")
    if multiple is not None:
        if multiple < 1:
            raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be split at multiples of {multiple}: take a "
                                  f"positive int")
        return simplify_expr(Binary("//", extent, Const(multiple)) * multiple)
    given = simplify_expr(integer(point))
    outside = {each.name for each in nest.loops[: nest.position(loop.name)]} | {name for name, _ in nest.defined}
    if free(given) - outside or (isinstance(given, Const) and given.value < 0):
        raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be split at {pretty_expr(printable(given))}: take "
                              f"a point of at least 0 over loops outside of it")
    return given if _is_floor_of(given, extent) else simplify_expr(Binary("min", given, extent))


def _is_floor_of(point: Expr, extent: Expr) -> bool:
    """Whether a point is x // m * m for an extent x, or x and a constant."""
    match point:
        case Binary("*", Binary("//", x, Const(divisor)), Const(factor)) if divisor == factor:
            return extent == x or (isinstance(extent, Binary) and extent.op == "+" and extent.a == x and isinstance(
                extent.b, Const) and extent.b.value >= 0)
    return False


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


def narrow(program: Program, nest: str, loop: Dim) -> Program:
    """Make the condition under which a reduction adds anything the end of a loop.

    `for k: for i in 0 .. n: t[i] += where(i < e(k), S, 0)  ->  for k: for i in 0 .. min(n, e(k)): t[i] += S`

    So sums over a triangle run over the triangle only, and may be products of tiles.

    Legal when the nest adds up on top of what is stored (`decompose_reduction`), the loop runs along a whole dimension
    of the result, and e(k) is the same in all iterations of the loops inside of it.

    Raises:
        IllegalSchedule: names what is in the way, and the remedy.

    Source: CoRa §7.1 (trmm computes triangles by vloops); here the loop that varies is of the result.
    """
    found = program.nest(nest)
    old, reduction = found.loop(loop.name), found.operation.reduction
    match reduction.value if reduction is not None and reduction.op == "sum" else None:
        case Select(Binary("<", Ref(loop.name), end), _, Const(0)):
            pass
        case _:
            raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since what is added up is not "
                                  f"where(less({loop.name}, end), value, 0)")
    if found.begins or found.operation.value != reduction:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since the reduction begins or ends in it: "
                              f"decompose_reduction first")
    if dict(found.operation.axes).get(loop) != old.extent or found.attached:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since it is not a whole dimension of the "
                              f"result, or something is computed in the nest: narrow first")
    extent = normal(simplify_expr(Binary("min", old.extent, _end(found, end, loop.name))))
    late = sorted(free(extent) & {each.name for each in found.loops[found.position(loop.name):]})
    if late:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot end at {pretty_expr(printable(end))}, which varies "
                              f"with loop {late[0]} inside of it: move {late[0]} outside")
    loops = tuple(replace(each, extent=extent) if each is old else each for each in found.loops)
    changed = replace(found, loops=loops, narrowed=(*found.narrowed, loop.name))
    check_order(changed)
    return program.with_nest(changed)


def _end(nest: Nest, end: Expr, loop: str) -> Expr:
    """Write an end by loops outside, if it is the same throughout those inside."""
    inside = nest.loops[nest.position(loop) + 1:]
    meanings = {name: nest.expanded(Ref(name)) for name in free(end)}
    names = {each.name for each in inside}
    end = replaced(end, {name: meaning for name, meaning in meanings.items() if free(meaning) & names})
    for each in inside:
        limit = constant_limit(each.extent)
        end = end if limit is None else without_inner(end, each.name, limit)
    return end


def inline(program: Program, operation: str) -> Program:
    """Put the definition of an element-wise result in place of its reads; the tensor is gone.

    `for i: y[i] = f(x[i]); for j: z[j] = g(y[h(j)])  ->  for j: z[j] = g(f(x[h(j)]))`

    So changes of padding cost no pass of their own. Legal when the operation has no reduction, is not kept, is whole,
    and nothing is computed at its loops.

    Raises:
        IllegalSchedule: it is not.

    Source: CoRa §4.1 (padding-change operators fuse with their neighbours).
    """
    found = program.nest(operation)
    name = found.operation.output.name
    if found.operation.reduction is not None:
        raise IllegalSchedule(f"{operation} cannot be inlined, since it is a reduction: use compute_at")
    if name in program.outputs:
        raise IllegalSchedule(f"{operation} cannot be inlined, since it is an output of {program.name}")
    if found.attached or Launch((found,)) not in program.launches or found.name != name:
        raise IllegalSchedule(f"{operation} cannot be inlined beside others or in parts: inline it first")
    value, dims = found.operation.value, [dim.name for dim, _ in found.operation.output.axes]

    def read(node: Expr) -> Expr | None:
        if not isinstance(node, Read) or node.tensor.name != name:
            return None
        return replaced(value, dict(zip(dims, node.indices, strict=True)))

    def change(nest: Nest) -> Nest:
        changed = rewritten(nest.operation.value, read)
        return nest if changed == nest.operation.value else replace(
            nest, operation=replace(nest.operation, value=changed))

    launches = tuple(launch for launch in program.launches if launch != Launch((found,)))
    result = replace(program, launches=launches).each_nest(change)
    for nest in result.nests():
        check_accesses(nest)
    return result


def offload(program: Program, nest: str, rows: str, cols: str, depth: str) -> Program:
    """Compute the three innermost loops by one call: kernels/cpu/multiply.cpp in C, loops in CUDA.

    `for r: for c: for k (reduction): out[r, c] += a[r, k] * b[k, c]  ->  out[..] += a[..] b[..]`; what else the value
    is made of is done to the tile afterwards, while it is in the caches. Extents may vary, tiles need no padding.

    Legal when the loops are the innermost, in this order, and of the kind serial, the reduction adds up the product of
    two tensors, elements of all three tensors are evenly spaced along the loops, and along the columns side by side.
    It adds in another order.

    Raises:
        IllegalSchedule: it is not, and why.

    Source: CoRa §7.1, D.8 (inner tiles by MKL and OpenBLAS). Departures: products are our own routine's, no BLAS's;
    what follows the product is fused with it.
    """
    found = program.nest(nest)
    names = (rows, cols, depth)
    last = tuple(loop.name for loop in found.loops[-3:])
    if last != names:
        raise IllegalSchedule(f"{nest} cannot be offloaded at loops {', '.join(names)}: the innermost are "
                              f"{', '.join(last)}: reorder first")
    reduces = [found.loop(name).reduces for name in names]
    others = [name for name in names if found.loop(name).kind != "serial"]
    if reduces != [False, False, True] or others:
        raise IllegalSchedule(f"{nest} cannot be offloaded at loops {', '.join(names)}: take two serial loops of the "
                              f"result, then a serial one of the reduction")
    changed = replace(found, loops=(*found.loops[:-3], *(replace(loop, kind="dense") for loop in found.loops[-3:])))
    check_order(changed)
    result = program.with_nest(changed)
    for launch in result.launches:
        if any(each.name == nest for top in launch.nests for each in top.tree()):
            lower_launch(result, launch)
    return result
