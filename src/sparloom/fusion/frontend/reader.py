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
    reader = _TopReader(blocks, env, place)
    reader.walk(reader.flow.entry, None)
    return reader.program(function.__name__)


class _TopReader(StatementReader):
    """Reads the function itself, where only the two marked loops are loops."""

    def __init__(self, blocks: dict[int, Any], env: Environment, place: Place) -> None:
        super().__init__(blocks, env)
        self._nests: list[Nest] = []
        self._place = place
        self._places: dict[int, Place] = {}  # of the statements of the prelude
        self._moved = 0  # how many of them stand before the first loop

    def loop(self, header: int) -> int:
        """Read a marked loop; inner loops as usual."""
        if self._open:
            return super().loop(header)
        env, bounds = self.env, self.bounds(header)
        place = env.place(self._blocks[header].terminator)
        if not bounds.marked:
            raise refuse(place, "an outermost loop that is not marked: mark the two loops to fuse by fprange, and do "
                         "other work outside the function")
        if len(self._nests) == 2:
            raise refuse(place, "a third marked loop: two loops are fused")
        if not self._nests:
            self._moved = len(self.body)
        self._check_carried(header, place)
        env.accesses, self.declared = [], []
        iterator, inside, after, body = self.enter(header)
        env.loops.append(iterator)
        self.nested(body, inside, header)
        env.loops.pop()
        self._nests.append(Nest(iterator, (*self.declared, *body), tuple(env.accesses), place))
        env.accesses, self.declared = [], []
        return after

    def program(self, name: str) -> Program:
        """Put the parts together."""
        if len(self._nests) != 2:
            raise refuse(self._place, f"{len(self._nests)} marked loops: mark two outermost loops by fprange")
        first, second = self._nests
        results, single = self._results()
        program = Program(name, tuple(self.env.scalars.values()), tuple(self.env.arrays.values()), tuple(self.body),
                          first, second, results, single, self._place)
        self._check_prelude(program)
        return program

    def _statement(self, statement: Any, rest: list[Any]) -> None:
        before = len(self.body)
        super()._statement(statement, rest)
        if not self._open:
            self._places |= dict.fromkeys(range(before, len(self.body)), self.env.place(statement))

    def _check_carried(self, header: int, place: Place) -> None:
        for phi in self._blocks[header].find_exprs(op="phi"):
            name = next(each.target for each in self._blocks[header].body if getattr(each, "value", None) is phi)
            raise refuse(place, f"{name.unversioned_name} is carried from one iteration to the next: iterations of a "
                         "marked loop must be independent")

    def _results(self) -> tuple[tuple[str, ...], bool]:
        returned = self.returned
        if isinstance(returned, PythonObject) and returned.value is None:
            return (), False
        items = returned.values if isinstance(returned, Items) else (returned,)
        if not all(isinstance(item, ArrayName) for item in items):
            raise refuse(self._place, "what is returned is no array: return arrays, or a tuple of arrays")
        return tuple(item.name for item in items), not isinstance(returned, Items)

    def _check_prelude(self, program: Program) -> None:
        """Statements outside the loops move before the first."""
        for position, statement in enumerate(program.prelude):
            place = self._places.get(position, self._place)
            if not isinstance(statement, Let):
                raise refuse(place, f"a {type(statement).__name__.lower()} outside the marked loops: put it into "
                             "one of them, or do it outside the function")
            array = _read(statement.value, program.written())
            if array is not None and position >= self._moved:
                raise refuse(place, f"{statement.name} is computed from {array} after the first loop has begun: "
                             "what stands between the loops must not need them")


def _read(expr: Expr, arrays: frozenset[str]) -> str | None:
    return next((node.buffer for node in walk(expr) if isinstance(node, Load) and node.buffer in arrays), None)
