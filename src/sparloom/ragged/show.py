"""Programs as text for people: loops as they are scheduled, accesses by dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparloom.ir import Expr, Ref, pretty_expr, rebuild
from sparloom.ragged.dimensions import free
from sparloom.ragged.layout import stored
from sparloom.ragged.operation import Operation, Reduce, rewritten
from sparloom.ragged.tables import At, FusedInner, FusedOuter, Largest, Offsets, Order
from sparloom.ragged.tensor import Read, Tensor

if TYPE_CHECKING:
    from sparloom.ragged.program import Loop, Nest, Program

__all__ = ["printable", "show"]

_SUMMARY = {"sum": "+=", "max": "max=", "min": "min="}


def show(program: Program) -> str:
    """Print a program: tensors with their storage, then every launch with its loops."""
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
    """Put names that can be printed in place of what only ragged programs have."""
    inner = rebuild(expr, expr=printable, body=lambda body: body)
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


def _text(expr: Expr) -> str:
    return pretty_expr(printable(expr))


def _entry(table: object, args: str) -> str:
    match table:
        case Offsets(_, summand):
            return f"offsets<{_text(summand)}>({args})"
        case Largest(_, value):
            return f"largest<{_text(value)}>"
        case FusedOuter(extent, inner) | FusedInner(extent, inner):
            return f"{table.label}<{_text(extent)}, {_text(inner)}>({args})"
        case Order(_, work):
            return f"order<{_text(work)}>({args})"
    return f"{table.label}({args})"


def _tensor(tensor: Tensor) -> str:
    notes = [f"{dim.name} to {multiple}" for dim, multiple in tensor.padding]
    notes += [f"{dim.name} full" for dim in tensor.full]
    notes += [f"sum of {dim.name} to {multiple}" for dim, multiple in tensor.bulk]
    if tensor.local is not None:
        return _local(tensor, notes)
    axes = ", ".join(f"{dim.name}: {_text(extent)}" for dim, extent in tensor.axes)
    text = f"{tensor.name}: {tensor.type}[{axes}]" + (f" padded {', '.join(notes)}" if notes else "")
    return text + (f" stored as [{_stored(tensor)}]" if tensor.changes else "")


def _local(tensor: Tensor, notes: list[str]) -> str:
    axes = ", ".join(f"{dim.name} in {_text(first)} ..: {_text(extent)}" for dim, first, extent in tensor.local or ())
    text = f"{tensor.name}: local {tensor.type}[{axes}]" + (f" padded {', '.join(notes)}" if notes else "")
    return text + (f" stored as [{_stored(tensor)}]" if tensor.changes else "")


def _stored(tensor: Tensor) -> str:
    return ", ".join(f"{dim.name}: {_text(extent)}" for dim, extent in stored(tensor).axes)


def _nest(nest: Nest, outside: set[str]) -> Iterator[str]:
    indent, known, waiting = "", set(outside), list(nest.defined)

    def definitions() -> Iterator[str]:
        for name, expr in list(waiting):
            if free(expr) <= known:
                waiting.remove((name, expr))
                known.add(name)
                yield f"{indent}{name} = {_text(expr)}"
                yield from definitions()
                return

    yield from definitions()
    after: str | None = None  # the indentation behind the reduction
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
    return f"{kind}for {loop.name} in 0 .. {_text(loop.extent)}{note}:"


def _statements(nest: Nest) -> list[str]:
    """What the innermost loop does, and what is done behind the reduction."""
    operation: Operation = nest.operation
    target = _text(operation.written)
    reduction = operation.reduction
    if reduction is None:
        return [f"{target} = {_text(operation.value)}"]
    notes = ("" if nest.begins else " (on top of what is stored)") + ("" if nest.ends else " (not finished)")
    lines = [f"{target} {_SUMMARY[reduction.op]} {_text(nest.added)}{notes}"]
    if nest.ends and reduction != operation.value:
        whole = rewritten(operation.value, lambda node: Ref(target) if node == reduction else None)
        lines.append(f"{target} = {_text(whole)}")
    return lines
