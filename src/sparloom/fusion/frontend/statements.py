"""Statements, loops and branches of Numba's IR as statements of the loop IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparloom.fusion.frontend.arithmetic import truth
from sparloom.fusion.frontend.control_flow import Flow
from sparloom.fusion.frontend.environment import Environment
from sparloom.fusion.frontend.expressions import evaluate, lookup, number
from sparloom.fusion.frontend.refusal import refuse
from sparloom.fusion.frontend.values import ArrayName, Bounds, Number, Value, convert, widest
from sparloom.fusion.program import Iterator, Place
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
    Unary,
    walk,
)

__all__ = ["StatementReader"]


class StatementReader:
    """Reads the blocks of a function into `body`, the innermost block that is open.

    Args:
        outermost: reads a loop that stands in no other, given its header; returns the block after it.
    """

    def __init__(self, blocks: dict[int, Any], env: Environment, outermost: Callable[[int], int]) -> None:
        self.env = env
        self.flow = Flow(blocks)
        self.body: list[Stmt] = []
        self.returned: Value | None = None
        self.declared: list[Declare] = []  # variables that change, of the marked loop that is open
        self.origins: list[tuple[Stmt, Place]] = []  # of the statements outside of loops
        self._blocks = blocks
        self._outermost = outermost
        self._open: list[int] = []  # headers of the loops around

    def walk(self, label: int | None, stop: int | None) -> None:
        """Read from a block on until `stop`."""
        while label is not None and label != stop:
            self._check_exit(label)
            if self.flow.is_header(label) and label not in self._open:
                label = self._loop(label) if self._open else self._outermost(label)
            else:
                label = self._block(label)

    def _loop(self, header: int) -> int:
        """Read a loop that is not marked; returns the block after it."""
        iterator, inside, after, body = self.enter(header)
        if self.bounds(header).marked:
            raise refuse(self.env.place(self._blocks[header].terminator), "a marked loop inside a loop: only the two "
                         "outermost loops are marked by fprange")
        self.env.enter(iterator)
        self.nested(body, inside, header)
        self.env.loops.pop()
        self._emit(For(iterator.name, iterator.lo, iterator.hi, body, step=iterator.step), self._blocks[header])
        return after

    def bounds(self, header: int) -> Bounds:
        """Find what a loop runs over.

        Raises:
            Unfusable: a while loop, or a loop over something that is no range.
        """
        block = self._blocks[header]
        steps = list(block.find_exprs(op="iternext"))
        value = self.env.values.get(steps[0].value.name) if steps else None
        if not isinstance(value, Bounds):
            raise refuse(self.env.place(block.terminator), "a loop that does not run over a range: use range or "
                         "fprange")
        return value

    def enter(self, header: int) -> tuple[Iterator, int, int, list[Stmt]]:
        """Read the header of a loop; returns iterator, first block inside, block after, and an empty body."""
        from numba.core import ir

        env, bounds, block = self.env, self.bounds(header), self._blocks[header]
        branch = block.terminator
        inside, after = branch.truebr, branch.falsebr
        name = env.fresh(self._user_name(header, inside))
        for each in block.body[:-1]:
            match getattr(each, "value", None):
                case ir.Expr(op="phi"):
                    self._join(each)
                case ir.Expr(op="pair_first"):
                    env.values[each.target.name] = Number(Ref(name), I64)
                case ir.Var() as copied if copied.name in env.values:
                    env.values[each.target.name] = env.values[copied.name]
        return Iterator(name, bounds.lo, bounds.hi, bounds.step), inside, after, []

    def nested(self, body: list[Stmt], label: int, stop: int) -> None:
        """Read blocks into `body`."""
        outer, current = self.body, dict(self.env.current)
        self.body = body
        self._open.append(stop)
        self.walk(label, stop)
        self._open.pop()
        self.body, self.env.current = outer, current

    def _check_exit(self, label: int) -> None:
        if self._open and not self.flow.is_inside(label, self._open[-1]):
            raise refuse(self.env.place(self._blocks[label].terminator), "a loop is left early: loops with break or "
                         "return have no fixed iterations")

    def _block(self, label: int) -> int | None:
        """Read one block; returns the one that follows."""
        from numba.core import ir

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
        raise refuse(self.env.place(block.terminator), "this statement is not understood: keep to loops and branches")

    def _branch(self, label: int, branch: Any) -> int | None:
        join = self.flow.join(label)
        cond = truth(number(branch.cond, self.env))
        ways: list[list[Stmt]] = []
        for target, met in ((branch.truebr, cond), (branch.falsebr, Unary("not", cond))):
            outer, current = self.body, dict(self.env.current)
            self.body = []
            self.env.conditions.append(self.env.resolve(met))
            self.walk(target, join)
            self.env.conditions.pop()
            ways.append(self.body)
            self.body, self.env.current = outer, current
        if any(ways):
            self._emit(If(cond, *ways), branch)
        return join

    def _statement(self, statement: Any, rest: list[Any]) -> None:
        from numba.core import ir

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
                place = self.env.place(statement)
                raise refuse(place, f"{type(statement).__name__} is not understood: keep to assignments and subscripts")

    def _join(self, phi: Any) -> None:
        leader = self.env.leader(phi.target)
        if leader in self.env.storage:
            self.env.current[leader] = phi.target.name

    def _assign(self, statement: Any, rest: list[Any]) -> None:
        env, target = self.env, statement.target
        value = evaluate(statement.value, target, env)
        if env.leader(target) is not None and isinstance(value, Number):
            self._change(target, value, rest)
        elif isinstance(value, Number) and not target.is_temp and not _is_name(value.expr):
            name = env.fresh(target.name)
            env.define(name, value.expr)
            self._emit(Let(name, value.type, value.expr), statement)
            env.values[target.name] = Number(Ref(name), value.type)
        else:
            named = isinstance(value, ArrayName) and not target.is_temp
            env.values[target.name] = env.call_it(value, target.name) if named else value

    def _change(self, target: Any, value: Number, rest: list[Any]) -> None:
        """Assign to a variable that changes; it is declared at the top of the marked loop."""
        env, leader = self.env, self.env.leader(target)
        if leader not in env.storage:
            place = env.place(target)
            type = widest(*(env.version_type(name, place) for name in env.members(leader)))
            name = env.fresh(target.unversioned_name)
            env.storage[leader] = Number(Ref(name), type)
            self.declared.append(Declare(name, type, Const(_zero(type), type)))
        variable = env.storage[leader]
        self._settle(lambda expr: variable.expr in set(walk(expr)), rest)
        self._emit(Assign(variable.expr.name, convert(value, variable.type)), target)
        env.current[leader] = target.name

    def _store(self, statement: Any, index: Value, rest: list[Any]) -> None:
        env, place = self.env, self.env.place(statement)
        array = lookup(statement.target, env)
        if not isinstance(array, ArrayName):
            raise refuse(place, "something that is no array is written to: write to elements of arrays")
        known = env.arrays[array.name]
        value = convert(number(statement.value, env), known.type)
        at = env.access(known.name, env.subscripts(index, known.name, place), writes=True, place=place)
        self._settle(lambda expr: any(isinstance(n, Load) and n.buffer == known.name for n in walk(expr)), rest)
        match value:
            case Binary("+", Load(buffer, where), added) if buffer == known.name and where == at:
                self._emit(Accumulate(known.name, at, added), statement)
            case _:
                self._emit(Store(known.name, at, value), statement)

    def _settle(self, affected: Callable[[Expr], bool], rest: list[Any]) -> None:
        """Evaluate before a write what was read before it and is used after it."""
        later = {variable.name for statement in rest for variable in statement.list_vars()}
        for name in later & set(self.env.values):
            value = self.env.values[name]
            if isinstance(value, Number) and affected(value.expr):
                kept = self.env.fresh(name)
                self._emit(Let(kept, value.type, value.expr), rest[0])
                self.env.define(kept, value.expr)
                self.env.values[name] = Number(Ref(kept), value.type)

    def _emit(self, statement: Stmt, node: Any) -> None:
        """Add a statement that a Numba node gives."""
        self.body.append(statement)
        if not self._open:
            self.origins.append((statement, self.env.place(node)))

    def _user_name(self, header: int, inside: int) -> str:
        """Name a loop as the source does: the variable that the body begins with."""
        for statement in self._blocks[inside].body[:1]:
            target = getattr(statement, "target", None)
            if target is not None and not target.is_temp:
                return target.unversioned_name
        return "it"


def _is_name(expr: Expr) -> bool:
    """Whether it needs no name of its own."""
    return isinstance(expr, (Ref, Const))


def _zero(type: Type) -> float | int | bool:
    return False if type == BOOL else 0.0 if type.scalar in ("f32", "f64") else 0
