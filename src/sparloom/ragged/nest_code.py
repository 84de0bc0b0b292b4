"""The statements of one nest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
    Let,
    Load,
    Ref,
    Select,
    Stmt,
    Store,
    View,
)
from sparloom.ragged.dimensions import free
from sparloom.ragged.layout import size
from sparloom.ragged.lookups import Lookups
from sparloom.ragged.operation import Reduce, rewritten
from sparloom.ragged.product import product
from sparloom.ragged.program import Loop, Nest
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tiling import constant_limit

__all__ = ["NEUTRAL", "NestCode"]

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
