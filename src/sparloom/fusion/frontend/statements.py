"""Statements: translates the loops, branches and assignments of Numba's IR to a program of two loops.

`for i in fprange(n): S; for j in fprange(n): T  ->  FusedProgram(first=S, second=T)`. Between the loops the function
may only allocate arrays and compute scalars that the first loop does not change; these move before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba.core import ir

from sparloom.fusion.frontend.environment import (
    ArrayName,
    Environment,
    Items,
    Number,
    PythonObject,
    RangeValue,
    Value,
    convert,
)
from sparloom.fusion.frontend.expressions import evaluate, lookup, number, truth
from sparloom.fusion.frontend.ssa import ControlFlow, phi_groups, typed_ssa
from sparloom.fusion.program import FusedProgram, Iterator, MarkedLoop, SourceLocation, location_at, refuse
from sparloom.ir import (
    BOOL,
    I64,
    Accumulate,
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
    Stmt,
    Store,
    Type,
    walk,
)


class StatementReader:
    """Reads the blocks of a function into `body`, the innermost open block.

    `outermost` reads an outermost loop, given its header, and returns the block after it.
    """

    def __init__(self, blocks: dict[int, Any], env: Environment, outermost: Callable[[int], int]) -> None:
        self.env = env
        self.flow = ControlFlow(blocks)
        self.body: list[Stmt] = []
        self.returned: Value | None = None
        self.declared: list[Declare] = []  # mutable variables of the marked loop that is being read
        self.origins: list[tuple[Stmt, SourceLocation]] = []  # of the statements outside loops
        self._blocks = blocks
        self._outermost = outermost
        self._open: list[int] = []  # headers of the enclosing loops

    def walk(self, label: int | None, stop: int | None) -> None:
        """Read from a block up to `stop`."""
        while label is not None and label != stop:
            self._check_exit(label)
            if self.flow.is_header(label) and label not in self._open:
                label = self._loop(label) if self._open else self._outermost(label)
            else:
                label = self._block(label)

    def _loop(self, header: int) -> int:
        """Read a loop that is not marked; return the block after it."""
        if self.bounds(header).marked:
            raise refuse(self.env.location(self._blocks[header].terminator), "a marked loop inside a loop: only the "
                         "two outermost loops are marked by fprange")
        iterator, body, after = self.read_loop(header)
        self._emit(For(iterator.name, iterator.lo, iterator.hi, body, step=iterator.step), self._blocks[header])
        return after

    def bounds(self, header: int) -> RangeValue:
        """Return the range of a loop; refuse loops over something else."""
        block = self._blocks[header]
        steps = list(block.find_exprs(op="iternext"))
        value = self.env.values.get(steps[0].value.name) if steps else None
        if not isinstance(value, RangeValue):
            raise refuse(self.env.location(block.terminator), "a loop that does not run over a range: use range or "
                         "fprange")
        return value

    def read_loop(self, header: int) -> tuple[Iterator, list[Stmt], int]:
        """Read a loop; return its iterator, its body, and the block after it."""
        env, bounds, block = self.env, self.bounds(header), self._blocks[header]
        branch = block.terminator
        name = env.fresh(self._user_name(branch.truebr))
        for each in block.body[:-1]:
            match getattr(each, "value", None):
                case ir.Expr(op="phi"):
                    self._join(each)
                case ir.Expr(op="pair_first"):
                    env.values[each.target.name] = Number(Ref(name), I64)
                case ir.Var() as copied if copied.name in env.values:
                    env.values[each.target.name] = env.values[copied.name]
        iterator, body = Iterator(name, bounds.lo, bounds.hi, bounds.step), []
        env.enter(iterator)
        self._open.append(header)
        self._read_into(body, branch.truebr, header)
        self._open.pop()
        env.loops.pop()
        return iterator, body, branch.falsebr

    def _read_into(self, body: list[Stmt], label: int, stop: int | None) -> None:
        outer, current = self.body, dict(self.env.current)
        self.body = body
        self.walk(label, stop)
        self.body, self.env.current = outer, current

    def _check_exit(self, label: int) -> None:
        if self._open and not self.flow.is_inside(label, self._open[-1]):
            raise refuse(self.env.location(self._blocks[label].terminator), "a loop is left early: loops with break or "
                         "return have no fixed iterations")

    def _block(self, label: int) -> int | None:
        """Read one block; return the next one."""
        block = self._blocks[label]
        for position, statement in enumerate(block.body[:-1]):
            self._statement(statement, block.body[position + 1 :])
        match block.terminator:
            case ir.Jump(target=target):
                return target
            case ir.Branch() as branch:
                return self._branch(label, branch)
            case ir.Return(value=value):
                self.returned = lookup(value, self.env)
                return None
        raise refuse(self.env.location(block.terminator), "this statement is not supported: keep to loops and branches")

    def _branch(self, label: int, branch: Any) -> int | None:
        join = self.flow.join(label)
        cond = truth(number(branch.cond, self.env))
        ways: tuple[list[Stmt], list[Stmt]] = ([], [])
        for way, target in zip(ways, (branch.truebr, branch.falsebr), strict=True):
            self._read_into(way, target, join)
        if any(ways):
            self._emit(If(cond, *ways), branch)
        return join

    def _statement(self, statement: Any, rest: list[Any]) -> None:
        match statement:
            case ir.Del():
                pass
            case ir.Assign(value=ir.Expr(op="phi")):
                self._join(statement)
            case ir.Assign():
                self._assign(statement, rest)
            case ir.SetItem():
                self._store(statement, lookup(statement.index, self.env), rest)
            case ir.StaticSetItem():
                self._store(statement, Number(Const(statement.index, I64), I64), rest)
            case _:
                location = self.env.location(statement)
                name = type(statement).__name__
                raise refuse(location, f"{name} is not supported: keep to assignments and subscripts")

    def _join(self, phi: Any) -> None:
        leader = self.env.leader(phi.target)
        if leader in self.env.storage:
            self.env.current[leader] = phi.target.name

    def _assign(self, statement: Any, rest: list[Any]) -> None:
        env, target = self.env, statement.target
        value = evaluate(statement.value, target, env)
        if env.leader(target) is not None and isinstance(value, Number):
            self._assign_mutable(target, value, rest)
        elif isinstance(value, Number) and not target.is_temp and not _is_atom(value.expr):
            name = env.fresh(target.name)
            env.definitions[name] = value.expr
            self._emit(Let(name, value.type, value.expr), statement)
            env.values[target.name] = Number(Ref(name), value.type)
        else:
            named = isinstance(value, ArrayName) and not target.is_temp
            env.values[target.name] = env.rename_array(value, target.name) if named else value

    def _assign_mutable(self, target: Any, value: Number, rest: list[Any]) -> None:
        """Assign to a mutable variable, which is declared at the top of the marked loop."""
        env, leader = self.env, self.env.leader(target)
        if leader not in env.storage:
            type = env.group_type(leader, env.location(target))
            name = env.fresh(target.unversioned_name)
            env.storage[leader] = Number(Ref(name), type)
            self.declared.append(Declare(name, type, Const(_zero(type), type)))
        variable = env.storage[leader]
        self._materialise(lambda expr: variable.expr in set(walk(expr)), rest)
        self._emit(Assign(variable.expr.name, convert(value, variable.type)), target)
        env.current[leader] = target.name

    def _store(self, statement: Any, index: Value, rest: list[Any]) -> None:
        env, location = self.env, self.env.location(statement)
        array = lookup(statement.target, env)
        if not isinstance(array, ArrayName):
            raise refuse(location, "an assignment to a subscript of something that is not an array: write to "
                         "elements of arrays")
        known = env.arrays[array.name]
        value = convert(number(statement.value, env), known.type)
        at = env.access(known.name, env.subscripts(index, known.name, location), writes=True, location=location)
        self._materialise(lambda expr: any(isinstance(n, Load) and n.buffer == known.name for n in walk(expr)), rest)
        match value:
            case Binary("+", Load(buffer, where), added) if buffer == known.name and where == at:
                self._emit(Accumulate(known.name, at, added), statement)
            case _:
                self._emit(Store(known.name, at, value), statement)

    def _materialise(self, affected: Callable[[Expr], bool], rest: list[Any]) -> None:
        """Evaluate, before a write, values that were read before it and are used after it."""
        later = {variable.name for statement in rest for variable in statement.list_vars()}
        for name in later & set(self.env.values):
            value = self.env.values[name]
            if isinstance(value, Number) and affected(value.expr):
                kept = self.env.fresh(name)
                self._emit(Let(kept, value.type, value.expr), rest[0])
                self.env.definitions[kept] = value.expr
                self.env.values[name] = Number(Ref(kept), value.type)

    def _emit(self, statement: Stmt, node: Any) -> None:
        """Append the statement of a Numba node."""
        self.body.append(statement)
        if not self._open:
            self.origins.append((statement, self.env.location(node)))

    def _user_name(self, inside: int) -> str:
        """Name a loop after its variable in the source, which the body assigns first."""
        for statement in self._blocks[inside].body[:1]:
            target = getattr(statement, "target", None)
            if target is not None and not target.is_temp:
                return target.unversioned_name
        return "it"


def _is_atom(expr: Expr) -> bool:
    """Tell whether an expression needs no name of its own."""
    return isinstance(expr, (Ref, Const))


def _zero(type: Type) -> float | int | bool:
    return False if type == BOOL else 0.0 if type.scalar in ("f32", "f64") else 0


def read_program(function: Callable[..., Any], types: Mapping[str, Any], real: type[np.generic]) -> FusedProgram:
    """Read a function with two marked loops; see `typed_ssa` for the arguments.

    Raises:
        Unfusable: the function does not have this form; the message names file and line.
    """
    code = function.__code__
    ssa = typed_ssa(function, types, real)
    blocks = ssa.ir.blocks
    env = Environment(ssa, phi_groups(blocks.values()), code.co_filename)
    location = location_at(code.co_filename, code.co_firstlineno)
    return _FunctionReader(blocks, env, location).program(function.__name__)


class _FunctionReader:
    """Reads the outermost level of a function, where the only loops are the two marked ones."""

    def __init__(self, blocks: dict[int, Any], env: Environment, location: SourceLocation) -> None:
        self._env = env
        self._blocks = blocks
        self._location = location
        self._statements = StatementReader(blocks, env, self._loop)
        self._nests: list[MarkedLoop] = []
        self._moved = 0  # statements of the prelude before the first loop

    def program(self, name: str) -> FusedProgram:
        """Read the function."""
        self._statements.walk(self._statements.flow.entry, None)
        if len(self._nests) != 2:
            raise refuse(self._location, f"{len(self._nests)} marked loops: mark two outermost loops by fprange")
        first, second = self._nests
        results, single = self._results()
        scalars, arrays = tuple(self._env.scalars.values()), tuple(self._env.arrays.values())
        program = FusedProgram(self._env.fresh(name), scalars, arrays, tuple(self._statements.body), first, second,
                               results, single, self._location)
        self._check_prelude(program)
        return program

    def _loop(self, header: int) -> int:
        """Read a marked loop; return the block after it."""
        env, reader, block = self._env, self._statements, self._blocks[header]
        location = env.location(block.terminator)
        if not reader.bounds(header).marked:
            raise refuse(location, "an outermost loop that is not marked: mark the two loops to fuse by fprange, and "
                         "do other work outside the function")
        if len(self._nests) == 2:
            raise refuse(location, "a third marked loop: two loops are fused")
        carried = next(iter(block.find_exprs(op="phi")), None)
        if carried is not None:
            name = next(each.target for each in block.body if getattr(each, "value", None) is carried).unversioned_name
            raise refuse(location, f"{name} is carried from one iteration to the next: iterations of a marked loop "
                         "must be independent")
        if not self._nests:
            self._moved = len(reader.body)
        env.accesses, reader.declared = [], []
        iterator, body, after = reader.read_loop(header)
        self._nests.append(MarkedLoop(iterator, (*reader.declared, *body), tuple(env.accesses), location))
        env.accesses, reader.declared = [], []
        return after

    def _results(self) -> tuple[tuple[str, ...], bool]:
        returned = self._statements.returned
        if isinstance(returned, PythonObject) and returned.value is None:
            return (), False
        items = returned.values if isinstance(returned, Items) else (returned,)
        if not all(isinstance(item, ArrayName) for item in items):
            raise refuse(self._location, "the function does not return an array: return arrays, or a tuple of arrays")
        return tuple(item.name for item in items), not isinstance(returned, Items)

    def _check_prelude(self, program: FusedProgram) -> None:
        """Check that the statements outside the loops can move before the first loop."""
        for position, statement in enumerate(program.prelude):
            location = next(location for each, location in self._statements.origins if each is statement)
            if not isinstance(statement, Let):
                raise refuse(location, f"a {type(statement).__name__.lower()} outside the marked loops: put it into "
                             "one of them, or do it outside the function")
            array = _read(statement.value, program.written())
            if array is not None and position >= self._moved:
                raise refuse(location, f"{statement.name} is computed from {array} after the first loop has begun: "
                             "what stands between the loops must not need them")


def _read(expr: Expr, arrays: frozenset[str]) -> str | None:
    return next((node.buffer for node in walk(expr) if isinstance(node, Load) and node.buffer in arrays), None)
