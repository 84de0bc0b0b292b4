"""The product of tiles that three loops are.

The statements of one nest.

Programs to kernels of the loop IR, one per launch.

    for o: for r (reduction): for s: S[o, r, s]
    ->  for o: acc[s] = 0 for all s;  for r: for s: acc[s] += S[o, r, s];  result[o, s] = acc[s] for all s

acc is a variable where no loop of the result stands inside the reduction, an array where those that do have constant
extents, and else the result itself. Defined names become Let as soon as they are known. Reduction loops that are
padded add the neutral element beyond the end.

Source: CoRa §5.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import (
    BOOL,
    I64,
    Alloc,
    Assign,
    Binary,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Multiply,
    Param,
    Ref,
    Select,
    Stmt,
    Store,
    View,
    pretty,
    simplify,
    simplify_expr,
)
from sparloom.ragged.definition import check_accesses
from sparloom.ragged.dimensions import Polynomial, constant_limit, expanded, free
from sparloom.ragged.layout import Access, offset_steps, size
from sparloom.ragged.program import Launch, Loop, Nest, Program, Reduce, rewritten
from sparloom.ragged.table_code import Lookups, hoist, prune
from sparloom.ragged.tensor import Read, Table, Tensor

__all__ = ["NEUTRAL", "Lowered", "NestCode", "lower", "lower_launch", "product"]

ZERO, ONE = Const(0), Const(1)
Strides = dict[str, Expr]


def product(nest: Nest, lookups: Lookups, meanings: Mapping[str, Expr], *, written: Read, loops: tuple[Loop, ...],
            add: Expr) -> Multiply:
    """Write the loops of rows, columns and the reduction as one statement.

    Args:
        written: the element that the nest computes.
        add: whether to add to what is stored.

    Raises:
        IllegalSchedule: the loops are no product of tiles, and why.
    """
    rows, cols, depth = (loop.name for loop in loops)
    inside = {name: expr for name, expr in meanings.items() if free(expanded(expr, meanings)) & {rows, cols, depth}}
    match nest.added:
        case Binary("*", Read() as a, Read() as b):
            pass
        case _:
            raise _refused(nest, "the reduction does not add up products of two tensors: move the rest out of it")
    padded = [dim.name for dim, _ in nest.operation.reduced if dim.name in dict(nest.padded)]
    if padded:
        raise _refused(nest, f"loop {padded[0]} of the reduction is padded: products need no padding")

    def strides(read: Read) -> tuple[Expr, Strides]:
        place = expanded(lookups.offset(read.tensor, read.indices, meanings), inside)
        found = Polynomial.of(place).joined().split((rows, cols, depth))
        if found is None:
            raise _refused(nest, f"elements of {read.tensor.name} are not evenly spaced along {rows}, {cols} and "
                                 f"{depth}: store the dimensions that these loops run along as the loops run")
        base, steps = found
        return simplify_expr(lookups.expr(base, meanings)), steps

    (a_at, left), (b_at, right), (c_at, result) = strides(a), strides(b), strides(written)
    if left[rows] == ZERO:
        a, a_at, left, b, b_at, right = b, b_at, right, a, a_at, left
    for read, steps, still in ((a, left, cols), (b, right, rows), (written, result, depth)):
        if steps[still] != ZERO:
            raise _refused(nest, f"{read.tensor.name} varies with loop {still}: it would not be a product of matrices")
    for read, steps in ((b, right), (written, result)):
        if steps[cols] != ONE:
            raise _refused(nest, f"elements of {read.tensor.name} do not lie side by side along loop {cols}: reorder "
                                 f"its dimensions")
    extents = [simplify_expr(lookups.expr(loop.extent, meanings)) for loop in loops]
    return Multiply(View(written.tensor.name, c_at, result[rows], ONE),
                    View(a.tensor.name, a_at, left[rows], left[depth]),
                    View(b.tensor.name, b_at, right[depth], ONE), extents[0], extents[1], extents[2], add)


def _refused(nest: Nest, why: str) -> IllegalSchedule:
    return IllegalSchedule(f"{nest.name} cannot be offloaded: {why}")


LOCAL_ELEMENTS = 4096  # of an accumulator array; threads have small stacks

NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
_COMBINE = {"sum": "+", "max": "max", "min": "min"}

Inside = Callable[[frozenset[str]], list[Stmt]]


@dataclass(frozen=True)
class _Accumulator:
    """Where a reduction is kept: read and written by these."""

    read: Expr
    write: Callable[[Expr], Stmt]
    made: tuple[Stmt, ...] = ()
    reduces: tuple[str, ...] = ()
    separate: bool = True  # from the result


class NestCode:
    """Writes a nest and those attached to it.

    Args:
        outside: names that stand for something where the nest is placed.
        meanings: what such names were defined as.
    """

    def __init__(self, nest: Nest, lookups: Lookups, outside: frozenset[str] = frozenset(),
                 meanings: Mapping[str, Expr] | None = None) -> None:
        self._nest = nest
        self._lookups = lookups
        self._outside = outside
        own = {loop.name for loop in nest.loops}  # may be defined names of the nest around
        self._meanings = {name: expr for name, expr in {**(meanings or {}), **dict(nest.defined)}.items()
                          if name not in own}
        limits = {loop.name: constant_limit(loop.extent) for loop in nest.loops}
        lookups.limits.update({name: limit for name, limit in limits.items() if limit is not None})

    def body(self) -> list[Stmt]:
        """Write all of it."""
        loops = self._nest.loops
        first = next((number for number, loop in enumerate(loops) if loop.reduces or loop.kind == "dense"), len(loops))
        if self._nest.operation.reduction is None:
            return self._around(loops, self._outside, lambda known: [self._store(self._nest.operation.value)])
        return self._around(loops[:first], self._outside, lambda known: self._reduction(loops[first:], known))

    def _around(self, loops: tuple[Loop, ...], known: frozenset[str], inside: Inside, *,
                reduces: tuple[str, ...] = ()) -> list[Stmt]:
        """Put loops around statements, definitions and attached nests where they belong."""
        lines, known = self._definitions(known)
        if not loops:
            return [*lines, *inside(known)]
        loop, inner = loops[0], known | {loops[0].name}
        attached: list[Stmt] = []
        producers = [nest for at, nest in self._nest.attached if at == loop.name]
        if producers:
            defined, inner = self._definitions(inner)
            attached += defined
            for nest in producers:
                attached += self._array(nest.operation.output)
                attached += NestCode(nest, self._lookups, inner, self._meanings).body()
        body = [*attached, *self._around(loops[1:], inner, inside, reduces=reduces)]
        kept = reduces if loop.kind == "simd" and loop.reduces else ()
        chunk = loop.chunk if loop.kind == "parallel" else None
        return [*lines, For(loop.name, 0, self._expr(loop.extent), body, loop.kind, chunk=chunk, reduces=kept)]

    def _definitions(self, known: frozenset[str]) -> tuple[list[Stmt], frozenset[str]]:
        """Define what has become known."""
        lines: list[Stmt] = []
        while True:
            ready = [(name, expr) for name, expr in self._nest.defined if name not in known and free(expr) <= known]
            if not ready:
                return lines, known
            for name, expr in ready:
                lines.append(Let(name, I64, self._expr(expr)))
                known |= {name}

    def _reduction(self, loops: tuple[Loop, ...], known: frozenset[str]) -> list[Stmt]:
        nest, reduction = self._nest, self._nest.operation.reduction
        assert reduction is not None
        if loops[-1].kind == "dense":
            return self._product(loops, known)
        inner = tuple(loop for loop in loops if not loop.reduces)
        neutral = Const(NEUTRAL[reduction.op], nest.operation.output.type)
        start = neutral if nest.begins else self._stored()
        acc = self._accumulator(inner, start)
        begin: list[Stmt] = []
        if inner and (nest.begins or acc.separate):
            begin = self._around(inner, known, lambda _: [acc.write(start)])
        added = self._expr(self._masked(reduction, neutral))
        update = acc.write(Binary(_COMBINE[reduction.op], acc.read, added))
        middle = self._around(loops, known, lambda _: [update], reduces=acc.reduces)
        whole = rewritten(nest.operation.value, lambda node: acc.read if node == reduction else None)
        final = whole if nest.ends else acc.read
        end: list[Stmt] = []
        if acc.separate or final != acc.read:
            end = self._around(inner, known, lambda _: [self._store(final)])
        return [*acc.made, *begin, *middle, *end]

    def _product(self, loops: tuple[Loop, ...], known: frozenset[str]) -> list[Stmt]:
        """A product of tiles in place of the three loops inside; what else the value is made of follows."""
        nest, reduction = self._nest, self._nest.operation.reduction
        assert reduction is not None
        around, (rows, cols, _) = loops[:-3], loops[-3:]
        tile = (replace(rows, kind="serial"), replace(cols, kind="simd"))
        inner = (*(loop for loop in around if not loop.reduces), *tile)
        again = [loop for loop in around if loop.reduces]
        follows = nest.ends and nest.operation.value != reduction
        height, width = constant_limit(rows.extent), constant_limit(cols.extent)
        small = height is not None and width is not None and 0 < height * width <= LOCAL_ELEMENTS
        if nest.begins and follows and not again and small:
            return self._tile(loops, known, height * width, width)
        lines: list[Stmt] = []
        add: Expr = Const(not nest.begins, BOOL)
        if again and nest.begins:
            start = self._around(inner, known, lambda _: [self._store(Const(0.0, nest.operation.output.type))])
            if all(map(_runs, again[1:])):
                turn = sum((Ref(loop.name) for loop in again[1:]), start=Ref(again[0].name))
                add = Binary("!=", turn, Const(0))
                if not _runs(again[0]):
                    lines.append(If(Binary("<", self._expr(again[0].extent), Const(1)), tuple(start)))
            else:
                lines += start
                add = Const(True, BOOL)
        lines += self._around(around, known, lambda _: [
            product(nest, self._lookups, self._meanings, written=nest.operation.written, loops=loops[-3:], add=add)])
        if follows:
            whole = rewritten(nest.operation.value, lambda node: self._stored() if node == reduction else None)
            lines += self._around(inner, known, lambda _: [self._store(whole)])
        return lines

    def _tile(self, loops: tuple[Loop, ...], known: frozenset[str], elements: int, width: int) -> list[Stmt]:
        """A product into a small array, from which the values are made: rows of the result may lie far apart."""
        nest, reduction = self._nest, self._nest.operation.reduction
        rows, cols, _ = loops
        name = self._lookups.fresh(f"{nest.name}_tile")
        made = product(nest, self._lookups, self._meanings, written=nest.operation.written, loops=loops,
                       add=Const(False, BOOL))
        made = replace(made, c=View(name, Const(0), Const(width), Const(1)))
        found = Load(name, Ref(rows.name) * width + Ref(cols.name))
        whole = rewritten(nest.operation.value, lambda node: found if node == reduction else None)
        tile = (replace(rows, kind="serial"), replace(cols, kind="simd"))
        return [Alloc(name, nest.operation.output.type.scalar, elements), made,
                *self._around(tile, known, lambda _: [self._store(whole)])]

    def _array(self, tensor: Tensor) -> list[Stmt]:
        """Make the array of a tensor that is local to one iteration."""
        if tensor.local is None or tensor.name in self._lookups.arrays:
            return []
        self._lookups.arrays.add(tensor.name)
        elements = self._expr(size(tensor))
        small = isinstance(elements, Const) and 0 < elements.value <= LOCAL_ELEMENTS
        return [Alloc(tensor.name, tensor.type.scalar, int(elements.value) if small else elements)]

    def _accumulator(self, inner: tuple[Loop, ...], start: Expr) -> _Accumulator:
        output = self._nest.operation.output
        name = self._lookups.fresh(f"{self._nest.name}_acc")
        if not inner:
            made = Declare(name, output.type, start)
            return _Accumulator(Ref(name), lambda value: Assign(name, value), (made,), (name,))
        limits = [constant_limit(loop.extent) for loop in inner]
        if None not in limits and 0 < math.prod(limits) <= LOCAL_ELEMENTS:
            place: Expr = Const(0)
            for loop, limit in zip(inner, limits, strict=True):
                place = place * limit + Ref(loop.name)
            made = Alloc(name, output.type.scalar, math.prod(limits))
            return _Accumulator(Load(name, place), lambda value: Store(name, place, value), (made,))
        return _Accumulator(self._stored(), self._store, separate=False)

    def _masked(self, reduction: Reduce, neutral: Expr) -> Expr:
        """Let padded iterations add nothing."""
        padded = dict(self._nest.padded)
        value = self._nest.added
        assert value is not None
        for dim, extent in reversed(reduction.axes):
            if dim.name in padded:
                value = Select(Binary("<", dim, extent), value, neutral)
        return value

    def _stored(self) -> Load:
        output = self._nest.operation.output
        return Load(output.name, self._place())

    def _store(self, value: Expr) -> Stmt:
        return Store(self._nest.operation.output.name, self._place(), self._expr(value))

    def _place(self) -> Expr:
        written = self._nest.operation.written
        return self._lookups.offset(written.tensor, written.indices, self._meanings)

    def _expr(self, expr: Expr) -> Expr:
        return self._lookups.expr(expr, self._meanings)


def _runs(loop: Loop) -> bool:
    """Whether a loop is known to have iterations."""
    return isinstance(loop.extent, Const) and loop.extent.value > 0


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lowered:
    """A kernel, and what its parameters are: a tensor or a table for each."""

    kernel: Kernel
    meaning: Mapping[str, Tensor | Table]


def lower(program: Program, *, hoisted: bool = True, access: Access = offset_steps) -> tuple[Lowered, ...]:
    """Make the kernels of a program, in order.

    Args:
        hoisted: loads from tables stand as far outside as they can.
        access: how elements of tensors are found: `offset_steps` or, for comparisons, `pointer_steps`.

    Raises:
        IllegalSchedule: an access may leave its storage, or cannot be made that way.
    """
    log.debug("%s", program)
    for nest in program.nests():
        check_accesses(nest)
    lowered = tuple(lower_launch(program, launch, hoisted=hoisted, access=access) for launch in program.launches)
    if log.isEnabledFor(logging.DEBUG):
        for each in lowered:
            log.debug("%s", pretty(each.kernel))
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
    body = bodies[0] if len(bodies) == 1 else _at_once(bodies, lookups)
    buffers = [Param(each.name, each.type, True, each.name not in written) for each in tensors.values()
               if each.local is None]
    tables = lookups.params()
    kernel = prune(Kernel(name, (*buffers, *tables), tuple(body)), {param.name for param in tables})
    if hoisted:
        kernel = hoist(kernel, {param.name for param in tables if param.buffer})
    meaning = {**tensors, **{given: table for table, given in lookups.names.items()}}
    return Lowered(simplify(kernel), {param.name: meaning[param.name] for param in kernel.params})


def _at_once(bodies: list[list[Stmt]], lookups: Lookups) -> list[Stmt]:
    """parallel for i in 0 .. n: S; parallel for j in 0 .. m: T  ->  parallel for k in 0 .. n + m: S if k < n, else T"""
    chosen = lookups.fresh("at_once")
    loops = [body[0] for body in bodies]
    lines: list[Stmt] = []
    ends: list[str] = []
    for loop in loops:
        ends.append(lookups.fresh(f"{loop.var}_end"))
        lines.append(Let(ends[-1], I64, loop.hi if len(ends) == 1 else Ref(ends[-2]) + loop.hi))
    branch: tuple[Stmt, ...] = ()
    for number in reversed(range(len(loops))):
        place = Ref(chosen) if number == 0 else Ref(chosen) - Ref(ends[number - 1])
        own = (Let(loops[number].var, I64, place), *loops[number].body)
        branch = own if not branch else (If(Binary("<", Ref(chosen), Ref(ends[number])), own, branch),)
    return [*lines, replace(loops[0], var=chosen, hi=Ref(ends[-1]), body=branch)]
