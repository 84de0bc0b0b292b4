"""Python text to a program of two loops.

`for i in fprange(n): S; for j in fprange(n): T  ->  Program(first=S, second=T)`. Between the loops only arrays may be
made and scalars computed that the first loop does not change: they move before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparloom.fusion.frontend.control_flow import mutable_groups
from sparloom.fusion.frontend.environment import Environment
from sparloom.fusion.frontend.refusal import place_at, refuse
from sparloom.fusion.frontend.ssa import typed_ssa
from sparloom.fusion.frontend.statements import StatementReader
from sparloom.fusion.frontend.values import ArrayName, Items, PythonObject
from sparloom.fusion.program import Nest, Place, Program
from sparloom.ir import Expr, Let, Load, walk

__all__ = ["read_program"]


def read_program(function: Callable[..., Any], types: Mapping[str, Any], real: type[np.generic]) -> Program:
    """Read a function with two marked loops.

    Args:
        types: Numba type of every parameter.
        real: type of the elements of arrays that are made without dtype.

    Raises:
        Unfusable: the function has another form; the message names file and line.
    """
    code = function.__code__
    ssa = typed_ssa(function, types, real)
    blocks = ssa.ir.blocks
    env = Environment(ssa, mutable_groups(blocks.values()), code.co_filename)
    place = place_at(code.co_filename, code.co_firstlineno)
    return _FunctionReader(blocks, env, place).program(function.__name__)


class _FunctionReader:
    """Reads the function itself, where only the two marked loops are loops."""

    def __init__(self, blocks: dict[int, Any], env: Environment, place: Place) -> None:
        self._env = env
        self._blocks = blocks
        self._place = place
        self._statements = StatementReader(blocks, env, self._loop)
        self._nests: list[Nest] = []
        self._moved = 0  # statements of the prelude that stand before the first loop

    def program(self, name: str) -> Program:
        """Read all, and put the parts together."""
        self._statements.walk(self._statements.flow.entry, None)
        if len(self._nests) != 2:
            raise refuse(self._place, f"{len(self._nests)} marked loops: mark two outermost loops by fprange")
        first, second = self._nests
        results, single = self._results()
        program = Program(self._env.fresh(name), tuple(self._env.scalars.values()), tuple(self._env.arrays.values()),
                          tuple(self._statements.body), first, second, results, single, self._place)
        self._check_prelude(program)
        return program

    def _loop(self, header: int) -> int:
        """Read a marked loop; returns the block after it."""
        env, reader, block = self._env, self._statements, self._blocks[header]
        place = env.place(block.terminator)
        if not reader.bounds(header).marked:
            raise refuse(place, "an outermost loop that is not marked: mark the two loops to fuse by fprange, and do "
                         "other work outside the function")
        if len(self._nests) == 2:
            raise refuse(place, "a third marked loop: two loops are fused")
        carried = next(iter(block.find_exprs(op="phi")), None)
        if carried is not None:
            name = next(each.target for each in block.body if getattr(each, "value", None) is carried).unversioned_name
            raise refuse(place, f"{name} is carried from one iteration to the next: iterations of a marked loop must "
                         "be independent")
        if not self._nests:
            self._moved = len(reader.body)
        env.accesses, reader.declared = [], []
        iterator, inside, after, body = reader.enter(header)
        env.enter(iterator)
        reader.nested(body, inside, header)
        env.loops.pop()
        self._nests.append(Nest(iterator, (*reader.declared, *body), tuple(env.accesses), place))
        env.accesses, reader.declared = [], []
        return after

    def _results(self) -> tuple[tuple[str, ...], bool]:
        returned = self._statements.returned
        if isinstance(returned, PythonObject) and returned.value is None:
            return (), False
        items = returned.values if isinstance(returned, Items) else (returned,)
        if not all(isinstance(item, ArrayName) for item in items):
            raise refuse(self._place, "what is returned is no array: return arrays, or a tuple of arrays")
        return tuple(item.name for item in items), not isinstance(returned, Items)

    def _check_prelude(self, program: Program) -> None:
        """Statements outside the loops move before the first."""
        for position, statement in enumerate(program.prelude):
            place = next(place for each, place in self._statements.origins if each is statement)
            if not isinstance(statement, Let):
                raise refuse(place, f"a {type(statement).__name__.lower()} outside the marked loops: put it into "
                             "one of them, or do it outside the function")
            array = _read(statement.value, program.written())
            if array is not None and position >= self._moved:
                raise refuse(place, f"{statement.name} is computed from {array} after the first loop has begun: "
                             "what stands between the loops must not need them")


def _read(expr: Expr, arrays: frozenset[str]) -> str | None:
    return next((node.buffer for node in walk(expr) if isinstance(node, Load) and node.buffer in arrays), None)
