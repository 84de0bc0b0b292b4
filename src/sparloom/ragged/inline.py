"""Compute element-wise results where they are read."""

from __future__ import annotations

from dataclasses import replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Expr
from sparloom.ragged.accesses import check_accesses
from sparloom.ragged.dimensions import replaced
from sparloom.ragged.operation import Read, rewritten
from sparloom.ragged.program import Launch, Nest, Program

__all__ = ["inline"]


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
