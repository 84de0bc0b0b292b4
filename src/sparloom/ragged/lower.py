"""Programs to kernels of the loop IR, one per launch.

    for o: for r (reduction): for s: S[o, r, s]
    ->  for o: acc[s] = 0 for all s;  for r: for s: acc[s] += S[o, r, s];  result[o, s] = acc[s] for all s

acc is a variable where no loop of the result stands inside the reduction, an array where those that do have constant
extents, and else the result itself. Defined names become Let as soon as they are known. Reduction loops that are
padded add the neutral element beyond the end.

Source: CoRa §5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparloom.ir import I64, Binary, If, Kernel, Let, Param, Ref, Stmt, pretty, simplify
from sparloom.ragged.accesses import check_accesses
from sparloom.ragged.hoist import hoist
from sparloom.ragged.layout import Access, offset_steps
from sparloom.ragged.lookups import Lookups
from sparloom.ragged.nest_code import NestCode
from sparloom.ragged.program import Launch, Program
from sparloom.ragged.prune import prune
from sparloom.ragged.tables import Table
from sparloom.ragged.tensor import Tensor

__all__ = ["Lowered", "lower", "lower_launch"]

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
