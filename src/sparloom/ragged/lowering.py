"""Lower programs to kernels of the loop IR, one per launch.

    for o: for r (reduction): for s: S[o, r, s]
    ->  for o: acc[s] = 0 for all s;  for r: for s: acc[s] += S[o, r, s];  result[o, s] = acc[s] for all s

Operands of products of narrow types are interleaved, see `sparloom.ir.nodes`.

acc is a variable if no loop of the result stands inside the reduction, an array if those that do have constant extents,
and otherwise the result itself. Defined names become Let as early as possible. Padded reduction loops add the neutral
element beyond the end.

Source: CoRa §5.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sparloom import ir
from sparloom.errors import IllegalSchedule
from sparloom.ragged.definition import check_accesses
from sparloom.ragged.dimensions import Polynomial, constant_bound, expand, free_names, is_multiple
from sparloom.ragged.layout import Access, offset_steps, storage_size
from sparloom.ragged.nests import NEUTRAL, Launch, Loop, Nest, Program, Reduce, rewrite
from sparloom.ragged.table_code import Lookups, Meanings, hoist, prune
from sparloom.ragged.tensor import Read, Table, Tensor

log = logging.getLogger(__name__)

LOCAL_ELEMENTS = 4096  # largest array on the stack; threads have small stacks
ZERO, ONE = ir.Const(0), ir.Const(1)
_COMBINE = {"sum": "+", "max": "max", "min": "min"}

Inside = Callable[[frozenset[str]], list[ir.Stmt]]  # statements, given the names that are defined around them
Strides = dict[str, ir.Expr]


@dataclass(frozen=True)
class Lowered:
    """Kernel, and the tensor or table behind each of its parameters."""

    kernel: ir.Kernel
    meaning: Mapping[str, Tensor | Table]


def lower(program: Program, *, hoisted: bool = True, access: Access = offset_steps) -> tuple[Lowered, ...]:
    """Make the kernels of a program, in order.

    Args:
        hoisted: move loads from tables out of loops as far as possible.
        access: rule for offsets of elements: `offset_steps`, or `pointer_steps` as a baseline.

    Raises:
        IllegalSchedule: an access may be out of bounds, or cannot be made by this rule.
    """
    log.debug("%s", program)
    for nest in program.nests():
        check_accesses(nest)
    lowered = tuple(lower_launch(program, launch, hoisted=hoisted, access=access) for launch in program.launches)
    if log.isEnabledFor(logging.DEBUG):
        for each in lowered:
            log.debug("%s", ir.pretty(each.kernel))
    return lowered


def lower_launch(program: Program, launch: Launch, *, hoisted: bool = True, access: Access = offset_steps) -> Lowered:
    """Make the kernel of one launch; see `lower`."""
    nests = [each for nest in launch.nests for each in nest.tree()]
    tensors = {each.name: each for nest in nests for each in (
        *(read.tensor for read in nest.operation.reads), nest.operation.output)}
    written = {nest.operation.output.name for nest in nests}
    name = f"{program.name}_{launch.name}"
    taken = {name, *tensors, *(each for nest in nests for each in nest.names())}
    lookups = Lookups(taken, access)
    bodies = [NestCode(nest, lookups).body() for nest in launch.nests]
    body = bodies[0] if len(bodies) == 1 else _fuse_horizontally(bodies, lookups)
    buffers = [ir.Param(each.name, each.type, True, each.name not in written) for each in tensors.values()
               if each.local is None]
    tables = lookups.params()
    kernel = prune(ir.Kernel(name, (*buffers, *tables), tuple(body)), {param.name for param in tables})
    if hoisted:
        kernel = hoist(kernel, {param.name for param in tables if param.buffer})
    meaning = {**tensors, **{param: table for table, param in lookups.names.items()}}
    return Lowered(ir.simplify(kernel), {param.name: meaning[param.name] for param in kernel.params})


def _fuse_horizontally(bodies: list[list[ir.Stmt]], lookups: Lookups) -> list[ir.Stmt]:
    """parallel for i in 0 .. n: S; parallel for j in 0 .. m: T  ->  parallel for k in 0 .. n + m: S if k < n, else T"""
    chosen = lookups.fresh("at_once")
    loops = [body[0] for body in bodies]
    lines: list[ir.Stmt] = []
    ends: list[str] = []
    for loop in loops:
        ends.append(lookups.fresh(f"{loop.var}_end"))
        lines.append(ir.Let(ends[-1], ir.I64, loop.hi if len(ends) == 1 else ir.Ref(ends[-2]) + loop.hi))
    branch: tuple[ir.Stmt, ...] = ()
    for number in reversed(range(len(loops))):
        index = ir.Ref(chosen) if number == 0 else ir.Ref(chosen) - ir.Ref(ends[number - 1])
        own = (ir.Let(loops[number].var, ir.I64, index), *loops[number].body)
        branch = own if not branch else (ir.If(ir.Binary("<", ir.Ref(chosen), ir.Ref(ends[number])), own, branch),)
    return [*lines, replace(loops[0], var=chosen, hi=ir.Ref(ends[-1]), body=branch)]


@dataclass(frozen=True)
class _Accumulator:
    """Storage of a reduction: how it is read and written."""

    read: ir.Expr
    write: Callable[[ir.Expr], ir.Stmt]
    made: tuple[ir.Stmt, ...] = ()
    reduces: tuple[str, ...] = ()
    separate: bool = True  # from the result


class NestCode:
    """Code generator for a nest and its attached nests.

    Args:
        outside: names defined where the nest is placed.
        meanings: definitions of such names.
    """

    def __init__(self, nest: Nest, lookups: Lookups, outside: frozenset[str] = frozenset(),
                 meanings: Meanings | None = None) -> None:
        self._nest = nest
        self._lookups = lookups
        self._outside = outside
        own = {loop.name for loop in nest.loops}  # may be defined names of the nest around
        self._meanings = {name: expr for name, expr in {**(meanings or {}), **dict(nest.defined)}.items()
                          if name not in own}
        limits = {loop.name: constant_bound(loop.extent) for loop in nest.loops}
        lookups.limits.update({name: limit for name, limit in limits.items() if limit is not None})

    def body(self) -> list[ir.Stmt]:
        """Generate all statements."""
        loops = self._nest.loops
        first = next((number for number, loop in enumerate(loops) if loop.reduces or loop.kind == "dense"), len(loops))
        if self._nest.operation.reduction is None:
            return self._around(loops, self._outside, lambda known: [self._store(self._nest.operation.value)])
        return self._around(loops[:first], self._outside, lambda known: self._reduction(loops[first:], known))

    def _around(self, loops: tuple[Loop, ...], known: frozenset[str], inside: Inside, *,
                reduces: tuple[str, ...] = ()) -> list[ir.Stmt]:
        """Wrap loops around statements; insert definitions and attached nests where they belong."""
        lines, known = self._definitions(known)
        if not loops:
            return [*lines, *inside(known)]
        loop, inner = loops[0], known | {loops[0].name}
        attached: list[ir.Stmt] = []
        producers = [nest for at, nest in self._nest.attached if at == loop.name]
        if producers:
            defined, inner = self._definitions(inner)
            attached += defined
            for nest in producers:
                attached += self._array(nest.operation.output)
                attached += NestCode(nest, self._lookups, inner, self._meanings).body()
        body = [*attached, *self._around(loops[1:], inner, inside, reduces=reduces)]
        names = reduces if loop.kind == "simd" and loop.reduces else ()
        chunk = loop.chunk if loop.kind == "parallel" else None
        return [*lines, ir.For(loop.name, 0, self._expr(loop.extent), body, loop.kind, chunk=chunk, reduces=names)]

    def _definitions(self, known: frozenset[str]) -> tuple[list[ir.Stmt], frozenset[str]]:
        """Define the names that have become computable."""
        lines: list[ir.Stmt] = []
        while True:
            ready = [(name, expr) for name, expr in self._nest.defined
                     if name not in known and free_names(expr) <= known]
            if not ready:
                return lines, known
            for name, expr in ready:
                lines.append(ir.Let(name, ir.I64, self._expr(expr)))
                known |= {name}

    def _reduction(self, loops: tuple[Loop, ...], known: frozenset[str]) -> list[ir.Stmt]:
        nest, reduction = self._nest, self._nest.operation.reduction
        assert reduction is not None
        if loops[-1].kind == "dense":
            return self._product(loops, known)
        inner = tuple(loop for loop in loops if not loop.reduces)
        neutral = _neutral(reduction, nest.operation.reduced_type)
        start = neutral if nest.begins else self._stored()
        acc = self._accumulator(inner, start)
        begin: list[ir.Stmt] = []
        if inner and (nest.begins or acc.separate):
            begin = self._around(inner, known, lambda _: [acc.write(start)])
        added = self._expr(self._masked(reduction, neutral))
        update = acc.write(ir.Binary(_COMBINE[reduction.op], acc.read, added))
        middle = self._around(loops, known, lambda _: [update], reduces=acc.reduces)
        whole = rewrite(nest.operation.value, lambda node: acc.read if node == reduction else None)
        final = whole if nest.ends else acc.read
        end: list[ir.Stmt] = []
        if acc.separate or final != acc.read:
            end = self._around(inner, known, lambda _: [self._store(final)])
        return [*acc.made, *begin, *middle, *end]

    def _product(self, loops: tuple[Loop, ...], known: frozenset[str]) -> list[ir.Stmt]:
        """Replace the three innermost loops by a product of tiles; the rest of the value is computed afterwards."""
        nest, reduction = self._nest, self._nest.operation.reduction
        assert reduction is not None
        around, (rows, cols, _) = loops[:-3], loops[-3:]
        tile = (replace(rows, kind="serial"), replace(cols, kind="simd"))
        inner = (*(loop for loop in around if not loop.reduces), *tile)
        again = [loop for loop in around if loop.reduces]
        follows = nest.ends and nest.operation.value != reduction
        height, width = constant_bound(rows.extent), constant_bound(cols.extent)
        small = height is not None and width is not None and 0 < height * width <= LOCAL_ELEMENTS
        if nest.begins and follows and not again and small:
            return self._tile(loops, known, height * width, width)
        self._check_partial_type()
        lines: list[ir.Stmt] = []
        add: ir.Expr = ir.Const(not nest.begins, ir.BOOL)
        if again and nest.begins:
            start = self._around(inner, known, lambda _: [self._store(ir.Const(0.0, nest.operation.output.type))])
            if all(map(_is_nonempty, again[1:])):
                turn = sum((ir.Ref(loop.name) for loop in again[1:]), start=ir.Ref(again[0].name))
                add = ir.Binary("!=", turn, ir.Const(0))
                if not _is_nonempty(again[0]):
                    lines.append(ir.If(ir.Binary("<", self._expr(again[0].extent), ir.Const(1)), tuple(start)))
            else:
                lines += start
                add = ir.Const(True, ir.BOOL)
        lines += self._around(around, known, lambda _: [tile_product(
            nest, self._lookups, self._meanings, written=nest.operation.written, loops=loops[-3:], add=add)])
        if follows:
            whole = rewrite(nest.operation.value, lambda node: self._stored() if node == reduction else None)
            lines += self._around(inner, known, lambda _: [self._store(whole)])
        return lines

    def _tile(self, loops: tuple[Loop, ...], known: frozenset[str], elements: int, width: int) -> list[ir.Stmt]:
        """Multiply into a small array, then compute the values from it: rows of the result may lie far apart."""
        nest, reduction = self._nest, self._nest.operation.reduction
        rows, cols, _ = loops
        name = self._lookups.fresh(f"{nest.name}_tile")
        made = tile_product(nest, self._lookups, self._meanings, written=nest.operation.written, loops=loops,
                            add=ir.Const(False, ir.BOOL))
        made = replace(made, c=ir.View(name, ir.Const(0), ir.Const(width), ir.Const(1)))
        found = ir.Load(name, ir.Ref(rows.name) * width + ir.Ref(cols.name))
        whole = rewrite(nest.operation.value, lambda node: found if node == reduction else None)
        tile = (replace(rows, kind="serial"), replace(cols, kind="simd"))
        return [ir.Alloc(name, nest.operation.reduced_type.scalar, elements), made,
                *self._around(tile, known, lambda _: [self._store(whole)])]

    def _array(self, tensor: Tensor) -> list[ir.Stmt]:
        """Allocate a tensor that is local to one iteration."""
        if tensor.local is None or tensor.name in self._lookups.arrays:
            return []
        self._lookups.arrays.add(tensor.name)
        elements = self._expr(storage_size(tensor))
        small = isinstance(elements, ir.Const) and 0 < elements.value <= LOCAL_ELEMENTS
        return [ir.Alloc(tensor.name, tensor.type.scalar, int(elements.value) if small else elements)]

    def _accumulator(self, inner: tuple[Loop, ...], start: ir.Expr) -> _Accumulator:
        type = self._nest.operation.reduced_type
        name = self._lookups.fresh(f"{self._nest.name}_acc")
        if not inner:
            made = ir.Declare(name, type, start)
            return _Accumulator(ir.Ref(name), lambda value: ir.Assign(name, value), (made,), (name,))
        limits = [constant_bound(loop.extent) for loop in inner]
        if None not in limits and 0 < math.prod(limits) <= LOCAL_ELEMENTS:
            index: ir.Expr = ir.Const(0)
            for loop, limit in zip(inner, limits, strict=True):
                index = index * limit + ir.Ref(loop.name)
            made = ir.Alloc(name, type.scalar, math.prod(limits))
            return _Accumulator(ir.Load(name, index), lambda value: ir.Store(name, index, value), (made,))
        self._check_partial_type()
        return _Accumulator(self._stored(), self._store, separate=False)

    def _check_partial_type(self) -> None:
        """Check that the result can hold partial sums."""
        operation = self._nest.operation
        if operation.reduced_type != operation.output.type:
            raise IllegalSchedule(f"{self._nest.name} reduces {operation.reduced_type} to a result of "
                                  f"{operation.output.type}, which cannot hold partial sums: reduce in the innermost "
                                  f"loops, of at most {LOCAL_ELEMENTS} results")

    def _masked(self, reduction: Reduce, neutral: ir.Expr) -> ir.Expr:
        """Make padded iterations add the neutral element."""
        padded = dict(self._nest.padded)
        value = self._nest.added
        assert value is not None
        for dim, extent in reversed(reduction.axes):
            if dim.name in padded:
                value = ir.Select(ir.Binary("<", dim, extent), value, neutral)
        return value

    def _stored(self) -> ir.Load:
        output = self._nest.operation.output
        return ir.Load(output.name, self._written_index())

    def _store(self, value: ir.Expr) -> ir.Stmt:
        return ir.Store(self._nest.operation.output.name, self._written_index(), self._expr(value))

    def _written_index(self) -> ir.Expr:
        written = self._nest.operation.written
        return self._lookups.offset(written.tensor, written.indices, self._meanings)

    def _expr(self, expr: ir.Expr) -> ir.Expr:
        return self._lookups.expr(expr, self._meanings)


def _neutral(reduction: Reduce, type: ir.Type) -> ir.Const:
    value = NEUTRAL[reduction.op]
    return ir.Const(int(value) if type == ir.I32 and value == 0 else value, type)


def _is_nonempty(loop: Loop) -> bool:
    """Check whether a loop provably has iterations."""
    return isinstance(loop.extent, ir.Const) and loop.extent.value > 0


def tile_product(nest: Nest, lookups: Lookups, meanings: Meanings, *, written: Read, loops: tuple[Loop, ...],
                 add: ir.Expr) -> ir.Multiply:
    """Write the loops over rows, columns and the reduction as one statement.

    Args:
        written: element that the nest computes.
        add: whether to add to what is stored.
    """
    rows, cols, depth = (loop.name for loop in loops)
    inside = {name: expr for name, expr in meanings.items() if free_names(expand(expr, meanings)) & {rows, cols, depth}}
    match nest.added:
        case ir.Binary("*", Read() as a, Read() as b):
            pass
        case ir.Binary("*", ir.Cast(_, Read() as a), ir.Cast(_, Read() as b)):
            pass
        case _:
            raise _cannot_offload(nest, "the reduction does not sum products of two tensors: move the rest out of it")
    padded = [dim.name for dim, _ in nest.operation.reduced if dim.name in dict(nest.padded)]
    if padded:
        raise _cannot_offload(nest, f"loop {padded[0]} of the reduction is padded: products need no padding")

    group = ir.interleaved_rows(a.tensor.type.scalar)
    within = f"{depth}_within"
    if group > 1 and not is_multiple(loops[2].extent, group):
        raise _cannot_offload(nest, f"loop {depth} of the reduction is not a multiple of {group}, the number of "
                                    f"interleaved elements of {a.tensor.type}")

    def strides(read: Read) -> tuple[ir.Expr, Strides]:
        offset = expand(lookups.offset(read.tensor, read.indices, meanings), inside)
        if group > 1:
            offset = _in_groups(offset, depth, group, within)
        found = Polynomial.of(offset).cancel_divisions().strides((rows, cols, depth, within))
        if found is None:
            raise _cannot_offload(nest, f"elements of {read.tensor.name} are not evenly spaced along {rows}, {cols} "
                                        f"and {depth}: store the dimensions of these loops in the order of the loops")
        base, steps = found
        return ir.simplify_expr(lookups.expr(base, meanings)), steps

    (a_at, left), (b_at, right), (c_at, result) = strides(a), strides(b), strides(written)
    if left[rows] == ZERO:
        a, a_at, left, b, b_at, right = b, b_at, right, a, a_at, left
    types = (a.tensor.type.scalar, b.tensor.type.scalar)
    if ir.PRODUCTS.get(types) != nest.operation.reduced_type.scalar:
        raise _cannot_offload(nest, f"there is no product of {' by '.join(types)} in {nest.operation.reduced_type}")
    for read, steps, still in ((a, left, cols), (b, right, rows), (written, result, depth)):
        if steps[still] != ZERO:
            raise _cannot_offload(nest, f"{read.tensor.name} varies with loop {still}: this is not a product of "
                                        "matrices")
    for read, steps, apart in ((b, right, group), (written, result, 1)):
        if steps[cols] != ir.Const(apart):
            raise _cannot_offload(nest, f"elements of {read.tensor.name} are not contiguous along loop {cols}: reorder "
                                        "its dimensions")
    if group > 1 and [left[within], left[depth], right[within]] != [ONE, ir.Const(group), ONE]:
        raise _cannot_offload(nest, f"elements of {a.tensor.name} are not contiguous along loop {depth}, or those of "
                                    f"{b.tensor.name} not interleaved by {group}: split and reorder its dimensions")
    extents = [ir.simplify_expr(lookups.expr(loop.extent, meanings)) for loop in loops]
    return ir.Multiply(ir.View(written.tensor.name, c_at, result[rows], ONE),
                       ir.View(a.tensor.name, a_at, left[rows], left[depth] if group == 1 else ONE),
                       ir.View(b.tensor.name, b_at, right[depth], ir.Const(group)), *extents, add)


def _in_groups(offset: ir.Expr, depth: str, group: int, within: str) -> ir.Expr:
    """Replace `depth` in an offset by group * depth + within, and divide where `within` cannot carry."""
    def quotient(expr: ir.Expr) -> ir.Expr | None:
        """Return q if expr = group * q + within."""
        match expr:
            case ir.Ref(name) if name == depth:
                return expr
            case ir.Binary("%", inner, ir.Const(size)) if size % group == 0:
                found = quotient(inner)
                return None if found is None else ZERO if size == group else found % (size // group)
        return None

    def change(expr: ir.Expr) -> ir.Expr | None:
        match expr:
            case ir.Binary("//", inner, ir.Const(size)) if size % group == 0:
                found = quotient(inner)
                return found if found is None or size == group else found // (size // group)
        found = quotient(expr)
        return None if found is None else found * group + ir.Ref(within)

    return ir.simplify_expr(rewrite(offset, change))


def _cannot_offload(nest: Nest, why: str) -> IllegalSchedule:
    return IllegalSchedule(f"{nest.name} cannot be offloaded: {why}")
