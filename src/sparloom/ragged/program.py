"""Programs that schedules change: operations as loop nests, in order of execution.

    program := Program(name, launch*, output*)
    launch  := Launch(nest*)                   one kernel; several nests run at once (horizontal fusion)
    nest    := Nest(name, operation, loop*, defined*, padded*, attached*, begins, ends, bulk*, narrowed*)
    loop    := Loop(name, extent, kind, reduces, chunk)
    defined := (name, expression)              what a transformed dimension is, by the loops that took its place
    attached:= (loop, nest)                    a producer computed in every iteration of a loop, before what is inside
    kind    := serial | parallel | shared | simd | unrolled | dense      three dense loops are one product of tiles

Nests of operations that are not scheduled run their dimensions in order, reductions innermost. A nest that does not
begin adds to what is stored; one that does not end stores what is reduced so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Expr, Ref, Select
from sparloom.ragged.dimensions import Axis, expanded
from sparloom.ragged.operation import Operation, Read, rewritten
from sparloom.ragged.show import show
from sparloom.ragged.tensor import Tensor

__all__ = ["Kind", "Launch", "Loop", "Nest", "Program"]

Kind = Literal["serial", "parallel", "shared", "simd", "unrolled", "dense"]


@dataclass(frozen=True)
class Loop:
    """Runs from 0; the extent reads loops outside and names they define.

    Args:
        reduces: it runs along dimensions of the reduction.
        chunk: iterations that a thread takes at a time, where it is parallel.
    """

    name: str
    extent: Expr
    kind: Kind = "serial"
    reduces: bool = False
    chunk: int = 1


@dataclass(frozen=True)
class Nest:
    """One operation, or a part of it.

    Args:
        padded: multiples that loops along dimensions are padded to.
        begins: the reduction starts anew.
        ends: the value is finished; else what is reduced so far is stored.
        bulk: pairs of dimensions whose fused loop is padded, with the multiple.
        narrowed: dimensions whose loop ends where the reduction ceases to add anything.
    """

    name: str
    operation: Operation
    loops: tuple[Loop, ...]
    defined: tuple[tuple[str, Expr], ...] = ()
    padded: tuple[tuple[str, int], ...] = ()
    attached: tuple[tuple[str, Nest], ...] = ()
    begins: bool = True
    ends: bool = True
    bulk: tuple[tuple[str, str, int], ...] = ()
    narrowed: tuple[str, ...] = ()

    def loop(self, name: str) -> Loop:
        """Look up a loop.

        Raises:
            IllegalSchedule: there is none of that name.
        """
        for loop in self.loops:
            if loop.name == name:
                return loop
        there = ", ".join(loop.name for loop in self.loops) or "none"
        raise IllegalSchedule(f"{self.name} has no loop {name}; there are: {there}")

    def position(self, name: str) -> int:
        """Count the loops outside of a loop."""
        return self.loops.index(self.loop(name))

    def expanded(self, expr: Expr) -> Expr:
        """Put what they are defined as in place of defined names, until only loops (and names outside) are left."""
        return expanded(expr, dict(self.defined))

    def names(self) -> set[str]:
        """All names that stand for something in the nest."""
        axes = {dim.name for dim, _ in self.axes}
        return axes | {loop.name for loop in self.loops} | {name for name, _ in self.defined}

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.operation.axes, *self.operation.reduced)

    @property
    def added(self) -> Expr | None:
        """What the reduction adds up, without the conditions that narrowed loops stand for."""
        value = None if self.operation.reduction is None else self.operation.reduction.value
        while isinstance(value, Select) and isinstance(value.cond, Binary) and value.cond.a in map(Ref, self.narrowed):
            value = value.a
        return value

    def tree(self) -> Iterator[Nest]:
        """Yield the nest and all that are attached, inner ones last."""
        yield self
        for _, each in self.attached:
            yield from each.tree()


@dataclass(frozen=True)
class Launch:
    """Nests that run at once."""

    nests: tuple[Nest, ...]

    @property
    def name(self) -> str:
        return "_".join(nest.name for nest in self.nests)


@dataclass(frozen=True)
class Program:
    """A list of launches; printing it shows the loops as they stand."""

    name: str
    launches: tuple[Launch, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return show(self)

    def nests(self) -> tuple[Nest, ...]:
        """All nests, those attached after the one they are attached to."""
        return tuple(each for launch in self.launches for nest in launch.nests for each in nest.tree())

    def nest(self, name: str) -> Nest:
        """Look up a nest.

        Raises:
            IllegalSchedule: there is none of that name.
        """
        for nest in self.nests():
            if nest.name == name:
                return nest
        there = ", ".join(nest.name for nest in self.nests())
        raise IllegalSchedule(f"program {self.name} has no operation {name}; there are: {there}")

    def with_nest(self, changed: Nest) -> Program:
        """Put a nest in place of the one of its name."""
        return self.each_nest(lambda nest: changed if nest.name == changed.name else nest)

    def each_nest(self, change: Callable[[Nest], Nest]) -> Program:
        """Change all nests, attached ones first."""

        def deep(nest: Nest) -> Nest:
            return change(replace(nest, attached=tuple((at, deep(each)) for at, each in nest.attached)))

        launches = tuple(Launch(tuple(deep(nest) for nest in launch.nests)) for launch in self.launches)
        return replace(self, launches=launches)

    def with_tensor(self, changed: Tensor) -> Program:
        """Put a tensor in place of the one of its name, wherever it is read or defined."""

        def read(node: Expr) -> Expr | None:
            return changed[node.indices] if isinstance(node, Read) and node.tensor.name == changed.name else None

        def change(nest: Nest) -> Nest:
            operation = nest.operation
            output = changed if operation.output.name == changed.name else operation.output
            return replace(nest, operation=replace(operation, output=output, value=rewritten(operation.value, read)))

        return self.each_nest(change)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name: those that are given in order of use, then those that are computed, in order."""
        made = {nest.operation.output.name: nest.operation.output for nest in self.nests()}
        read = {each.tensor.name: each.tensor for nest in self.nests() for each in nest.operation.reads}
        return {**{name: each for name, each in read.items() if name not in made}, **made}

    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that are given."""
        made = {nest.operation.output.name for nest in self.nests()}
        return tuple(name for name in self.tensors() if name not in made)
