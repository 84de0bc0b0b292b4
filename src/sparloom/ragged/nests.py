"""Operations and programs: what is computed, as scheduled loop nests in order of execution.

    operation := Operation(output tensor, value)
    value     := an expression of the loop IR over dims, with Read(tensor, index*) and at most one
                 Reduce(op, dim*, extent*, value), perhaps in several places;  op := sum | max | min

    program := Program(name, launch*, output*)
    launch  := Launch(nest*)                   one kernel; several nests run concurrently (horizontal fusion)
    nest    := Nest(name, operation, loop*, defined*, padded*, attached*, begins, ends, narrowed*)
    loop    := Loop(name, extent, kind, reduces, chunk)
    defined := (name, expression)              a transformed dimension in terms of the loops that replaced it
    attached:= (loop, nest)                    producer computed in every iteration of a loop, before the loop's body
    kind    := serial | parallel | shared | simd | unrolled | dense      three dense loops are one tile product

`compute("scores", {...}, sum_over({inner: 64}, query[batch, row, head, inner] * key[batch, col, head, inner]))` defines
every element of `scores`. Dimensions are i64 in values; `real` converts them to the tensor's type. Unscheduled nests
loop over their dimensions in order, reductions innermost. A nest that does not begin its reduction adds to what is
stored; one that does not end it stores the partial result.

Source: CoRa §4, Listing 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from sparloom.errors import IllegalSchedule
from sparloom.ir import BOOL, F32, I64, Binary, Call, Cast, Const, Expr, Ref, Select, Type, pretty_expr, rebuild, walk
from sparloom.ragged.dimensions import Axis, Dim, as_index, checked_axes, expand, free_names, substitute
from sparloom.ragged.layout import stored_dims
from sparloom.ragged.tensor import At, FusedInner, FusedOuter, Largest, Offsets, Order, Read, Tensor

Combine = Literal["sum", "max", "min"]
Kind = Literal["serial", "parallel", "shared", "simd", "unrolled", "dense"]
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
_UPDATE = {"sum": "+=", "max": "max=", "min": "min="}


@dataclass(frozen=True)
class Reduce(Expr, tuples=("dims", "extents")):
    """Sum, maximum or minimum of a value over dimensions; 0, -inf or inf over an empty range."""

    op: Combine
    dims: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    value: Expr

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(zip(self.dims, self.extents, strict=True))


@dataclass(frozen=True)
class Operation:
    """Definition of every element of `output`, or of those at fixed coordinates.

    Args:
        at: dimensions of which only one coordinate, a constant, is defined.
        part: name of the nest that defines these elements, if it is not that of the output.

    Raises:
        IllegalSchedule: the value reads a name that is not a dimension, reads the output itself, or has two
            reductions; or an index reads a tensor.
    """

    output: Tensor
    value: Expr
    at: tuple[tuple[Dim, Expr], ...] = ()
    part: str = ""

    def __post_init__(self) -> None:
        name = self.output.name
        reductions = [node for node in walk(self.value) if isinstance(node, Reduce)]
        different = sum(node not in reductions[:number] for number, node in enumerate(reductions))
        if different > 1:
            raise IllegalSchedule(f"{name} has {different} reductions: compute all but one as separate tensors")
        known = {dim.name for dim, _ in (*self.axes, *self.reduced)}
        unknown = sorted(free_names(self.value) - known)
        if unknown:
            raise IllegalSchedule(f"{name} reads {unknown[0]}, which is not one of its dimensions: "
                                  f"{', '.join(sorted(known))}")
        checked_axes(f"operation {name}", (*self.axes, *self.reduced))
        for read in self.reads:
            if read.tensor.name == name:
                raise IllegalSchedule(f"{name} reads itself: give the result another name")
            if any(isinstance(node, (Read, Reduce)) for index in read.indices for node in walk(index)):
                raise IllegalSchedule(f"{name} reads {read.tensor.name} at an index that is read from a tensor: "
                                      f"indices consist of dimensions, constants and length functions")

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Read:
        return self.output[indices]

    @property
    def name(self) -> str:
        return self.output.name

    @property
    def nest(self) -> str:
        """Name of the nest that it is defined by."""
        return self.part or self.output.name

    def loops(self) -> tuple[Loop, ...]:
        """Return the loops of a nest that is not scheduled."""
        return (*(Loop(dim.name, extent) for dim, extent in self.axes),
                *(Loop(dim.name, extent, reduces=True) for dim, extent in self.reduced))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Dimensions of the result that vary."""
        fixed = {dim.name: number for dim, number in self.at}
        return tuple((dim, substitute(extent, fixed)) for dim, extent in self.output.axes if dim.name not in fixed)

    @property
    def written(self) -> Read:
        """Element that is defined, over `axes`."""
        fixed = dict(self.at)
        return self.output[tuple(fixed.get(dim, dim) for dim, _ in self.output.axes)]

    @cached_property
    def reduction(self) -> Reduce | None:
        return next((node for node in walk(self.value) if isinstance(node, Reduce)), None)

    @property
    def reduced(self) -> tuple[Axis, ...]:
        return () if self.reduction is None else self.reduction.axes

    @cached_property
    def reduced_type(self) -> Type:
        """Type of the reduction, which the value may convert."""
        return self.output.type if self.reduction is None else _type(self.reduction.value)

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        return tuple(node for node in walk(self.value) if isinstance(node, Read))

    def accesses(self, tensor: str) -> bool:
        """Tell whether a tensor of this name is read or defined."""
        return self.output.name == tensor or any(read.tensor.name == tensor for read in self.reads)


def _type(value: Expr) -> Type:
    match value:
        case Read(tensor):
            return tensor.type
        case Const(_, type) | Cast(type):
            return type
        case Binary("<" | "<=" | ">" | ">=" | "==" | "!=" | "and" | "or"):
            return BOOL
        case Binary(_, a) | Select(_, a):
            return _type(a)
        case Call(_, (a, *_)) | Reduce(value=a):
            return _type(a)
    return I64  # dimensions


def compute(name: str, axes: Mapping[Dim, Expr | int], value: Expr, type: Type = F32) -> Operation:
    """Define a tensor; its storage is not padded until a schedule pads it."""
    return Operation(Tensor(name, axes, type), value)


def sum_over(axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    """Sum over dimensions; inner extents may read outer dimensions."""
    return _reduce("sum", axes, value)


def max_over(axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    """Maximum over dimensions."""
    return _reduce("max", axes, value)


def min_over(axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    """Minimum over dimensions."""
    return _reduce("min", axes, value)


def real(value: Expr | float, type: Type = F32) -> Expr:
    """Convert a Python number, a dimension or a length to an element type."""
    return Cast(type, value) if isinstance(value, Expr) else Const(float(value), type)


def exp(value: Expr) -> Expr:
    """Compute e to the power of a value."""
    return Call("exp", (value,))


def exp2(value: Expr) -> Expr:
    """Compute 2 to the power of a value."""
    return Call("exp2", (value,))


def sqrt(value: Expr) -> Expr:
    """Compute the square root of a value."""
    return Call("sqrt", (value,))


def erf(value: Expr) -> Expr:
    """Compute the error function of a value."""
    return Call("erf", (value,))


def tanh(value: Expr) -> Expr:
    """Compute the hyperbolic tangent of a value."""
    return Call("tanh", (value,))


def maximum(a: Expr, b: Expr) -> Expr:
    """Return the larger of two values."""
    return Binary("max", a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """Return the smaller of two values."""
    return Binary("min", a, b)


def less(a: Expr, b: Expr | int) -> Expr:
    """Compare dimensions or values, as a condition of `where`."""
    return Binary("<", a, b)


def where(cond: Expr, a: Expr, b: Expr) -> Expr:
    """Select a or b; the other one is not evaluated."""
    return Select(cond, a, b)


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Replace the outermost nodes for which `change(node)` is not None."""
    found = change(expr)
    if found is not None:
        return found
    return rebuild(expr, expr=lambda inner: rewrite(inner, change))


def _reduce(op: Combine, axes: Mapping[Dim, Expr | int], value: Expr) -> Reduce:
    if not axes:
        raise IllegalSchedule("a reduction over no dimension: name at least one, with its extent")
    return Reduce(op, tuple(axes), tuple(as_index(extent) for extent in axes.values()), value)


@dataclass(frozen=True)
class Loop:
    """Loop from 0 to an extent, which may read outer loops and names they define.

    Args:
        reduces: it runs along dimensions of the reduction.
        chunk: iterations that a thread takes at a time, if parallel.
    """

    name: str
    extent: Expr
    kind: Kind = "serial"
    reduces: bool = False
    chunk: int = 1


@dataclass(frozen=True)
class Nest:
    """Loop nest of one operation, or of a part of it.

    Args:
        padded: multiples to which loops along dimensions are padded.
        begins: the reduction starts from the neutral element.
        ends: the value is completed; otherwise the partial reduction is stored.
        narrowed: dimensions whose loop ends where the reduction has nothing left to add.
    """

    name: str
    operation: Operation
    loops: tuple[Loop, ...]
    defined: tuple[tuple[str, Expr], ...] = ()
    padded: tuple[tuple[str, int], ...] = ()
    attached: tuple[tuple[str, Nest], ...] = ()
    begins: bool = True
    ends: bool = True
    narrowed: tuple[str, ...] = ()

    def loop(self, name: str) -> Loop:
        """Look up a loop; raise IllegalSchedule if none has this name."""
        for loop in self.loops:
            if loop.name == name:
                return loop
        there = ", ".join(loop.name for loop in self.loops) or "none"
        raise IllegalSchedule(f"{self.name} has no loop {name}; there are: {there}")

    def position(self, name: str) -> int:
        """Return the index of a loop, 0 for the outermost."""
        return self.loops.index(self.loop(name))

    def expanded(self, expr: Expr) -> Expr:
        """Replace defined names until only loops, and names defined outside, are left."""
        return expand(expr, dict(self.defined))

    def names(self) -> set[str]:
        """Return all names that are defined in the nest."""
        axes = {dim.name for dim, _ in self.axes}
        return axes | {loop.name for loop in self.loops} | {name for name, _ in self.defined}

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.operation.axes, *self.operation.reduced)

    @property
    def added(self) -> Expr | None:
        """Reduced value without the conditions that narrowed loops replace."""
        value = None if self.operation.reduction is None else self.operation.reduction.value
        while isinstance(value, Select) and isinstance(value.cond, Binary) and value.cond.a in map(Ref, self.narrowed):
            value = value.a
        return value

    def tree(self) -> Iterator[Nest]:
        """Yield the nest and all attached ones, inner ones last."""
        yield self
        for _, each in self.attached:
            yield from each.tree()


@dataclass(frozen=True)
class Launch:
    """Nests that run concurrently, as one kernel."""

    nests: tuple[Nest, ...]

    @property
    def name(self) -> str:
        return "_".join(nest.name for nest in self.nests)


@dataclass(frozen=True)
class Program:
    """List of launches; printing a program shows its loops."""

    name: str
    launches: tuple[Launch, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return format_program(self)

    def nests(self) -> tuple[Nest, ...]:
        """Return all nests; attached ones follow the one they are attached to."""
        return tuple(each for launch in self.launches for nest in launch.nests for each in nest.tree())

    def nest(self, name: str) -> Nest:
        """Look up a nest; raise IllegalSchedule if none has this name."""
        for nest in self.nests():
            if nest.name == name:
                return nest
        there = ", ".join(nest.name for nest in self.nests())
        raise IllegalSchedule(f"program {self.name} has no operation {name}; there are: {there}")

    def with_nest(self, changed: Nest) -> Program:
        """Replace the nest of the same name."""
        return self.each_nest(lambda nest: changed if nest.name == changed.name else nest)

    def each_nest(self, change: Callable[[Nest], Nest]) -> Program:
        """Apply a change to all nests, attached ones first."""

        def deep(nest: Nest) -> Nest:
            attached = tuple((at, deep(each)) for at, each in nest.attached)
            return change(replace(nest, attached=attached) if attached else nest)

        launches = tuple(Launch(tuple(deep(nest) for nest in launch.nests)) for launch in self.launches)
        return replace(self, launches=launches)

    def with_tensor(self, changed: Tensor) -> Program:
        """Replace the tensor of the same name wherever it is read or defined."""

        def read(node: Expr) -> Expr | None:
            return changed[node.indices] if isinstance(node, Read) and node.tensor.name == changed.name else None

        def change(nest: Nest) -> Nest:
            operation = nest.operation
            if not operation.accesses(changed.name):
                return nest
            output = changed if operation.output.name == changed.name else operation.output
            return replace(nest, operation=replace(operation, output=output, value=rewrite(operation.value, read)))

        return self.each_nest(change)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name: inputs in order of use, then results in order."""
        made = {nest.operation.output.name: nest.operation.output for nest in self.nests()}
        read = {each.tensor.name: each.tensor for nest in self.nests() for each in nest.operation.reads}
        return {**{name: each for name, each in read.items() if name not in made}, **made}

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the tensors that no operation computes."""
        made = {nest.operation.output.name for nest in self.nests()}
        return tuple(name for name in self.tensors() if name not in made)


def format_program(program: Program) -> str:
    """Format a program: tensors with their storage, then every launch with its loops."""
    tensors = program.tensors()
    roles = {name: "given" if name in program.inputs() else "kept" if name in program.outputs else "made"
             for name in tensors}
    lines = [f"program {program.name}"]
    lines += [f"    {roles[name]} {_tensor(tensor)}" for name, tensor in tensors.items()]
    for launch in program.launches:
        lines.append(f"launch {launch.name}:")
        for nest in launch.nests:
            lines += [f"    at once {nest.name}:"] if len(launch.nests) > 1 else []
            lines += ["    " + line for line in _nest(nest, set())]
    return "\n".join(lines) + "\n"


def printable(expr: Expr) -> Expr:
    """Replace nodes that only ragged programs have by names that the IR printer accepts."""
    inner = rebuild(expr, expr=printable)
    match inner:
        case At(table, args):
            return Ref(_entry(table, ", ".join(map(pretty_expr, args))))
        case Read(tensor, indices):
            return Ref(f"{tensor.name}[{', '.join(map(pretty_expr, indices))}]")
        case Reduce(op, dims, extents, value):
            over = ", ".join(f"{pretty_expr(dim)} in 0 .. {pretty_expr(extent)}"
                             for dim, extent in zip(dims, extents, strict=True))
            return Ref(f"{op}({over}: {pretty_expr(value)})")
    return inner


def text(expr: Expr) -> str:
    """Print an expression of a ragged program."""
    return pretty_expr(printable(expr))


def _entry(table: object, args: str) -> str:
    match table:
        case Offsets(_, summand):
            return f"offsets<{text(summand)}>({args})"
        case Largest(_, value):
            return f"largest<{text(value)}>"
        case FusedOuter(extent, inner) | FusedInner(extent, inner):
            return f"{table.label}<{text(extent)}, {text(inner)}>({args})"
        case Order(_, work):
            return f"order<{text(work)}>({args})"
    return f"{table.label}({args})"


def _tensor(tensor: Tensor) -> str:
    notes = [f"{dim.name} to {multiple}" for dim, multiple in tensor.padding]
    notes += [f"{dim.name} full" for dim in tensor.full]
    if tensor.local is None:
        kind, axes = "", _axes(tensor.axes)
    else:
        kind = "local "
        axes = ", ".join(f"{dim.name} in {text(first)} ..: {text(extent)}" for dim, first, extent in tensor.local)
    line = f"{tensor.name}: {kind}{tensor.type}[{axes}]" + (f" padded {', '.join(notes)}" if notes else "")
    return line + (f" stored as [{_axes(stored_dims(tensor).axes)}]" if tensor.changes else "")


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{dim.name}: {text(extent)}" for dim, extent in axes)


def _nest(nest: Nest, outside: set[str]) -> Iterator[str]:
    indent, known, waiting = "", set(outside), list(nest.defined)

    def definitions() -> Iterator[str]:
        for name, expr in list(waiting):
            if free_names(expr) <= known:
                waiting.remove((name, expr))
                known.add(name)
                yield f"{indent}{name} = {text(expr)}"
                yield from definitions()
                return

    yield from definitions()
    after: str | None = None  # indentation after the reduction
    for loop in nest.loops:
        after = indent if loop.reduces and after is None else after
        yield f"{indent}{_head(loop)}"
        indent += "    "
        known.add(loop.name)
        yield from definitions()
        for at, each in nest.attached:
            if at == loop.name:
                yield from (indent + line for line in _nest(each, known))
    first, *last = _statements(nest)
    yield indent + first
    yield from ((after or "") + line for line in last)


def _head(loop: Loop) -> str:
    kind = "" if loop.kind == "serial" else f"{loop.kind} "
    note = " (reduction)" if loop.reduces else f" chunk {loop.chunk}" if loop.chunk > 1 else ""
    return f"{kind}for {loop.name} in 0 .. {text(loop.extent)}{note}:"


def _statements(nest: Nest) -> list[str]:
    """Return the innermost statement, and the one after the reduction."""
    operation: Operation = nest.operation
    target = text(operation.written)
    reduction = operation.reduction
    if reduction is None:
        return [f"{target} = {text(operation.value)}"]
    notes = ("" if nest.begins else " (on top of what is stored)") + ("" if nest.ends else " (not finished)")
    lines = [f"{target} {_UPDATE[reduction.op]} {text(nest.added)}{notes}"]
    if nest.ends and reduction != operation.value:
        whole = rewrite(operation.value, lambda node: Ref(target) if node == reduction else None)
        lines.append(f"{target} = {text(whole)}")
    return lines
