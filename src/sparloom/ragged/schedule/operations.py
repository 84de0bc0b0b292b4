"""Schedule whole operations: split, fuse horizontally, decompose, narrow, inline, offload; pad and reorder storage."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, Select, fresh, simplify_expr
from sparloom.measure import vector_lanes
from sparloom.ragged.definition import check_accesses
from sparloom.ragged.dimensions import (
    Dim,
    as_index,
    constant_bound,
    free_names,
    min_of_sums,
    round_up,
    substitute,
    without_inner,
)
from sparloom.ragged.layout import offset_steps
from sparloom.ragged.lowering import NestCode
from sparloom.ragged.nests import NEUTRAL, Launch, Nest, Program, Read, rewrite, text
from sparloom.ragged.schedule.loops import (
    check_order,
    check_positive,
    reorder,
    replace_loops,
    split,
    taken_names,
    vectorise,
)
from sparloom.ragged.table_code import Lookups
from sparloom.ragged.tensor import Change, OrderedDims, SplitDim, Tensor

PANEL = max(16, 2 * vector_lanes())
"""Columns of a panel: two vectors, and at least 16, so that every loaded number of the left operand is used twice."""


def split_operation(program: Program, nest: str, loop: Dim, *, multiple: int | None = None,
                    point: Expr | int | None = None) -> Program:
    """Split an operation in two at a point of one of its loops.

    `for i in 0 .. n: S(i)  ->  for i in 0 .. p: S(i); for i_rest in 0 .. n - p: S(i_rest + p)`

    The parts are named `<nest>_main` and `<nest>_rest` and define parts of the same tensor. With `multiple`, p is the
    largest multiple up to n, so that tiles of the main part are whole without padding. If the loop belongs to the
    reduction, the main part stores its partial result and the rest continues from there.

    Legal if the loop runs along a whole dimension, unpadded, and nothing is computed at a loop of the nest.

    Args:
        point: p itself, at least 0, over dimensions outside the loop; it is limited to n.

    Source: CoRa §4.1, Figure 5. Departure: the prototype does not split reductions.
    """
    found = program.nest(nest)
    old = found.loop(loop.name)
    if dict(found.axes).get(loop) != old.extent:
        raise IllegalSchedule(f"{nest}: loop {loop.name} is no longer a whole dimension: split the operation before "
                              "you change the loop")
    if found.attached or Launch((found,)) not in program.launches:
        raise IllegalSchedule(f"{nest} cannot be split after nests are attached to it or fused with it: split "
                              f"it first")
    cut = _split_point(found, old.extent, loop=loop, multiple=multiple, point=point)
    taken = taken_names(program, nest)
    rest_name = fresh(f"{loop.name}_rest", taken)
    shorter = replace(old, name=rest_name, extent=simplify_expr(old.extent - cut))
    main = replace(found, name=fresh(f"{nest}_main", taken), loops=tuple(
        replace(each, extent=cut) if each is old else each for each in found.loops))
    rest = replace_loops(replace(found, name=fresh(f"{nest}_rest", taken)), (loop.name,), (shorter,),
                         defined=((loop.name, Ref(rest_name) + cut),))
    if old.reduces:
        main, rest = replace(main, ends=False), replace(rest, begins=False)
    return _replace_launches(program, [found], Launch((main,)), Launch((rest,)))


def _split_point(nest: Nest, extent: Expr, *, loop: Dim, multiple: int | None, point: Expr | int | None) -> Expr:
    if (multiple is None) == (point is None):
        raise IllegalSchedule(f"{nest.name}: give either the multiple or the point at which to split {loop.name}")
    if multiple is not None:
        check_positive(f"{nest.name}: loop {loop.name} cannot be split at multiples of", multiple)
        return simplify_expr(Binary("//", extent, Const(multiple)) * multiple)
    cut = simplify_expr(as_index(point))
    outside = {each.name for each in nest.loops[: nest.position(loop.name)]} | {name for name, _ in nest.defined}
    if free_names(cut) - outside or (isinstance(cut, Const) and cut.value < 0):
        raise IllegalSchedule(f"{nest.name}: loop {loop.name} cannot be split at {text(cut)}: use "
                              f"a point of at least 0 over loops outside of it")
    return cut if _is_floor_of(cut, extent) else simplify_expr(Binary("min", cut, extent))


def _is_floor_of(point: Expr, extent: Expr) -> bool:
    """Check whether a point is x // m * m for an extent x, or x plus a constant."""
    match point:
        case Binary("*", Binary("//", x, Const(divisor)), Const(factor)) if divisor == factor:
            return extent == x or (isinstance(extent, Binary) and extent.op == "+" and extent.a == x and isinstance(
                extent.b, Const) and extent.b.value >= 0)
    return False


def hfuse(program: Program, nests: Sequence[str]) -> Program:
    """Fuse the outermost loops of neighbouring operations horizontally, into one kernel.

    `parallel for i in 0 .. n: S; parallel for j in 0 .. m: T  ->  parallel for k in 0 .. n + m: if k < n: S[i := k]
    else: T[j := k - n]`

    Legal if the launches follow each other, every outermost loop is parallel, no operation reads what another one
    writes, and operations that write one tensor are parts of it, not parts of its reduction.

    Source: CoRa §4.1, §7.3.
    """
    found = [program.nest(name) for name in nests]
    if len(found) < 2 or len(set(nests)) < len(found):
        raise IllegalSchedule(f"horizontal fusion of {', '.join(nests) or 'nothing'}: name at least two operations")
    singles = [Launch((nest,)) for nest in found]
    positions = [program.launches.index(each) if each in program.launches else -1 for each in singles]
    if -1 in positions or positions != list(range(positions[0], positions[0] + len(positions))):
        raise IllegalSchedule(f"operations {', '.join(nests)} are not separate launches that follow each other in "
                              f"{', '.join(launch.name for launch in program.launches)}")
    for nest in found:
        if not nest.loops or nest.loops[0].kind != "parallel":
            raise IllegalSchedule(f"{nest.name} cannot run concurrently with others: its outermost loop "
                                  f"{nest.loops[0].name if nest.loops else ''} is not parallel: make it so")
        shared = next((loop.name for loop in nest.loops if loop.kind == "shared"), None)
        if shared is not None:
            raise IllegalSchedule(f"{nest.name} cannot run concurrently with others, since the threads of a block "
                                  f"share its loop {shared}: leave that serial")
    for number, one in enumerate(found):
        for other in found[number + 1:]:
            _check_apart(one, other)
    return _replace_launches(program, found, Launch(tuple(found)))


def _replace_launches(program: Program, old: Sequence[Nest], *new: Launch) -> Program:
    """Replace the neighbouring launches of single nests."""
    start = program.launches.index(Launch((old[0],)))
    return replace(program, launches=(*program.launches[:start], *new, *program.launches[start + len(old):]))


def _check_apart(one: Nest, other: Nest) -> None:
    for first, second in ((one, other), (other, one)):
        written = {each.operation.output.name for each in first.tree()}
        read = {read.tensor.name for each in second.tree() for read in each.operation.reads}
        if written & read:
            raise IllegalSchedule(f"{first.name} and {second.name} cannot run concurrently: {second.name} reads "
                                  f"{min(written & read)}")
    for pair in itertools.product(one.tree(), other.tree()):
        if pair[0].operation.output.name == pair[1].operation.output.name:
            for nest in pair:
                if not (nest.begins and nest.ends):
                    raise IllegalSchedule(f"{one.name} and {other.name} cannot run concurrently: {nest.name} is a part "
                                          f"of the reduction of {nest.operation.output.name}")


def decompose_reduction(program: Program, nest: str) -> Program:
    """Initialise a reduction in a separate launch.

    `for i: (t[i] = 0; for k: t[i] += S)  ->  for i: t[i] = 0;  for i: for k: t[i] += S`

    The parts are named `<nest>_start` and `<nest>_rest`; loops of the rest may then stand in any order, also around
    other nests: see `compute_with`.

    Legal if the nest is whole and unscheduled, and its value is the reduction alone.

    Source: TVM's decompose_reduction; CoRa §4.1 splits operations, not their initialisation.
    """
    found = program.nest(nest)
    operation, reduction = found.operation, found.operation.reduction
    plain = operation.loops()
    if Launch((found,)) not in program.launches or found != Nest(nest, operation, plain):
        raise IllegalSchedule(f"{nest} cannot be decomposed, since it is scheduled, or in parts: decompose first")
    if reduction is None or operation.value != reduction:
        raise IllegalSchedule(f"{nest} cannot be decomposed, since its value is not a reduction alone: move the "
                              f"rest to a separate operation")
    taken = taken_names(program, nest)
    neutral = Const(NEUTRAL[reduction.op], operation.output.type)
    start = Nest(fresh(f"{nest}_start", taken), replace(operation, value=neutral),
                 tuple(loop for loop in plain if not loop.reduces))
    rest = replace(found, name=fresh(f"{nest}_rest", taken), begins=False)
    return _replace_launches(program, [found], Launch((start,)), Launch((rest,)))


def narrow(program: Program, nest: str, loop: Dim) -> Program:
    """Turn the condition under which a reduction adds something into the end of a loop.

    `for k: for i in 0 .. n: t[i] += where(i < e(k), S, 0)  ->  for k: for i in 0 .. min(n, e(k)): t[i] += S`

    Sums over a triangle then run over the triangle only, and may be tile products.

    Legal if the nest adds to what is stored (`decompose_reduction`), the loop runs along a whole dimension of the
    result, and e(k) is the same in all iterations of the loops inside it.

    Source: CoRa §7.1 (trmm computes triangles by vloops); here the variable loop belongs to the result.
    """
    found = program.nest(nest)
    old, reduction = found.loop(loop.name), found.operation.reduction
    match reduction.value if reduction is not None and reduction.op == "sum" else None:
        case Select(Binary("<", Ref(loop.name), end), _, Const(0)):
            pass
        case _:
            raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since the reduced value is not "
                                  f"where(less({loop.name}, end), value, 0)")
    if found.begins or found.operation.value != reduction:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since the reduction begins or ends in it: "
                              f"decompose_reduction first")
    if dict(found.operation.axes).get(loop) != old.extent or found.attached:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be narrowed, since it is not a whole dimension of the "
                              f"result, or something is computed in the nest: narrow first")
    extent = min_of_sums(simplify_expr(Binary("min", old.extent, _end(found, end, loop.name))))
    late = sorted(free_names(extent) & {each.name for each in found.loops[found.position(loop.name):]})
    if late:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot end at {text(end)}, which varies "
                              f"with loop {late[0]} inside of it: move {late[0]} outside")
    loops = tuple(replace(each, extent=extent) if each is old else each for each in found.loops)
    changed = replace(found, loops=loops, narrowed=(*found.narrowed, loop.name))
    check_order(changed)
    return program.with_nest(changed)


def _end(nest: Nest, end: Expr, loop: str) -> Expr:
    """Write an end in terms of outer loops, if it is constant over the inner ones."""
    inside = nest.loops[nest.position(loop) + 1:]
    meanings = {name: nest.expanded(Ref(name)) for name in free_names(end)}
    names = {each.name for each in inside}
    end = substitute(end, {name: meaning for name, meaning in meanings.items() if free_names(meaning) & names})
    for each in inside:
        limit = constant_bound(each.extent)
        end = end if limit is None else without_inner(end, each.name, limit)
    return end


def inline(program: Program, operation: str) -> Program:
    """Replace reads of an element-wise result by its definition; the tensor disappears.

    `for i: y[i] = f(x[i]); for j: z[j] = g(y[h(j)])  ->  for j: z[j] = g(f(x[h(j)]))`

    Changes of padding then need no separate pass. Legal if the operation has no reduction, is not an output, is whole,
    and nothing is computed at its loops.

    Source: CoRa §4.1 (padding-change operators fuse with their neighbours).
    """
    found = program.nest(operation)
    name = found.operation.output.name
    if found.operation.reduction is not None:
        raise IllegalSchedule(f"{operation} cannot be inlined, since it is a reduction: use compute_at")
    if name in program.outputs:
        raise IllegalSchedule(f"{operation} cannot be inlined, since it is an output of {program.name}")
    if found.attached or Launch((found,)) not in program.launches or found.name != name:
        raise IllegalSchedule(f"{operation} cannot be inlined in parts, or after it is fused or attached: inline it "
                              "first")
    value, dims = found.operation.value, [dim.name for dim, _ in found.operation.output.axes]

    def read(node: Expr) -> Expr | None:
        if not isinstance(node, Read) or node.tensor.name != name:
            return None
        return substitute(value, dict(zip(dims, node.indices, strict=True)))

    def change(nest: Nest) -> Nest:
        changed = rewrite(nest.operation.value, read)
        return nest if changed == nest.operation.value else replace(
            nest, operation=replace(nest.operation, value=changed))

    launches = tuple(launch for launch in program.launches if launch != Launch((found,)))
    result = replace(program, launches=launches).each_nest(change)
    for nest in result.nests():
        check_accesses(nest)
    return result


def offload(program: Program, nest: str, rows: str, cols: str, depth: str) -> Program:
    """Compute the three innermost loops by one matrix product: a call of kernels/cpu/multiply.cpp in C, loops in CUDA.

    `for r: for c: for k (reduction): out[r, c] += a[r, k] * b[k, c]  ->  out[..] += a[..] b[..]`; the rest of the
    value is applied to the tile afterwards, while it is in the caches. Extents may vary, and tiles need no padding.

    Legal if the loops are the innermost ones, in this order and serial, the reduction sums products of two tensors, and
    elements of all three tensors are evenly spaced along the loops and contiguous along the columns. It adds in another
    order.

    Source: CoRa §7.1, D.8 (inner tiles by MKL and OpenBLAS). Departures: products use our own routine instead of a
    BLAS, and operations on the result are fused with them.
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
        raise IllegalSchedule(f"{nest} cannot be offloaded at loops {', '.join(names)}: use two serial loops of the "
                              f"result, then a serial one of the reduction")
    changed = replace(found, loops=(*found.loops[:-3], *(replace(loop, kind="dense") for loop in found.loops[-3:])))
    check_order(changed)
    result = program.with_nest(changed)
    for top in (each for launch in result.launches for each in launch.nests):
        if any(each.name == nest for each in top.tree()):
            NestCode(top, Lookups(())).body()  # raises an error if this is no product
    return result


def offload_innermost(program: Program, *nests: str) -> Program:
    """Offload the three innermost loops of each nest."""
    for nest in nests:
        program = offload(program, nest, *(loop.name for loop in program.nest(nest).loops[-3:]))
    return program


def pad_loop(program: Program, nest: str, loop: Dim, multiple: int) -> Program:
    """Round up the extent of a loop, so that its tiles are whole.

    `for i in 0 .. n(o): S  ->  for i in 0 .. ceil(n(o) / m) * m: S`. Results beyond n(o) go to padding of the storage;
    a reduction adds nothing there.

    Legal if the loop runs along a whole dimension and is not split or fused yet, no length function is indexed by this
    dimension, and the storage of every tensor it accesses is padded to a multiple of m in that dimension.

    Source: CoRa §4.1.
    """
    found = program.nest(nest)
    old, extents = found.loop(loop.name), dict(found.axes)
    check_positive(f"{nest}: loop {loop.name} cannot be padded to multiples of", multiple)
    if loop not in extents or old.extent != extents[loop]:
        raise IllegalSchedule(f"{nest}: loop {loop.name} is no longer a whole dimension: pad before you change it")
    if found.attached:
        raise IllegalSchedule(f"{nest}: loop {loop.name} cannot be padded, since {found.attached[0][1].name} is "
                              f"computed in the nest: pad before compute_at")
    loops = tuple(replace(each, extent=round_up(old.extent, multiple)) if each is old else each for each in found.loops)
    changed = replace(found, loops=loops, padded=(*found.padded, (loop.name, multiple)))
    check_accesses(changed)
    return program.with_nest(changed)


def pad_storage(program: Program, tensor: str, padding: Mapping[Dim, int] | None = None, *, full: Iterable[Dim] = ()
                ) -> Program:
    """Make the slices of a tensor larger than their elements require.

    `tensor[o, i: n(o)]  ->  tensor[o, i: ceil(n(o) / m) * m]`; with `full`, `tensor[o, i: largest n]`.

    Legal if it covers the padding of all loops that access the tensor.

    Args:
        tensor: an input or a result; values in its padding are undefined.

    Source: CoRa §4.1.
    """
    return _with_tensor(program, tensor, lambda each: each.stored(padding=padding, full=full))


def pad_all(program: Program, tensors: Mapping[str, Mapping[Dim, int]], nest: str, loops: Mapping[Dim, int]) -> Program:
    """Pad the storage of tensors, then loops of a nest, to multiples."""
    for tensor, padding in tensors.items():
        program = pad_storage(program, tensor, padding)
    for loop, multiple in loops.items():
        program = pad_loop(program, nest, loop, multiple)
    return program


def split_dimension(program: Program, tensor: str, dim: str, factor: int) -> Program:
    """Store a dimension in blocks: `t[.., i]  ->  t[.., i // factor, i % factor]`, named dim_block and dim_within.

    Always legal; slices are padded to whole blocks. If loops are split by the same factor, accesses need no division.

    Source: CoRa §4.1.
    """
    check_positive(f"tensor {tensor}: dimension {dim} cannot be split into blocks of", factor)
    return _with_change(program, tensor, SplitDim(dim, factor))


def reorder_dimensions(program: Program, tensor: str, order: Sequence[str]) -> Program:
    """Store dimensions in another order: `t[i, j, k], order (k, i)  ->  t[k, j, i]`; others keep their positions.

    Legal if every vdim stays inside those on which its extent depends.

    Source: CoRa §4.1.
    """
    return _with_change(program, tensor, OrderedDims(tuple(order)))


def store_in_panels(prog: Program, copy: str, *, panel: int, depth: int) -> Program:
    """Store a local copy of a matrix, (inner, col), in panels: [block of inner][panel of col][inner][col].

    A panel is written as a whole, columns in vector lanes.

    Args:
        copy: producer that was attached to a loop of its consumer.
        panel: number of columns that are contiguous.
        depth: extent of a block of the reduction.
    """
    rows, cols = (loop.name for loop in prog.nest(copy).loops)
    prog = split_dimension(split_dimension(prog, copy, "col", panel), copy, "inner", depth)
    prog = reorder_dimensions(prog, copy, ("inner_block", "col_block", "inner_within", "col_within"))
    prog = split(prog, copy, cols, panel)
    prog = reorder(prog, copy, (f"{cols}_outer", rows, f"{cols}_inner"))
    return vectorise(prog, copy, f"{cols}_inner")


def _with_change(program: Program, tensor: str, change: Change) -> Program:
    return _with_tensor(program, tensor, lambda each: replace(each, changes=(*each.changes, change)))


def _with_tensor(program: Program, tensor: str, change: Callable[[Tensor], Tensor]) -> Program:
    tensors = program.tensors()
    if tensor not in tensors:
        raise IllegalSchedule(f"program {program.name} has no tensor {tensor}; there are: {', '.join(tensors)}")
    changed = change(tensors[tensor])
    offset_steps(changed)
    result = program.with_tensor(changed)
    for nest in result.nests():
        if nest.operation.accesses(tensor):
            check_accesses(nest)
    return result
