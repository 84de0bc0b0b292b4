"""When do two accesses meet: the iterator of one marked loop as a function of the iterators of the other.

There is one integer equation per dimension, `subscript of one access = subscript of the other`, in which the iterators
of one side are given and those of the other unknown. They are solved one unknown at a time; what cannot be used is left
out, which only adds dependences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import sympy

from sparloom.fusion.ranges import at_least, extremes
from sparloom.fusion.symbolic import SymbolicLoop

__all__ = ["Solution", "solve"]


@dataclass(frozen=True)
class Solution:
    """`value` of the unknown outermost iterator for every iteration of `loops` in which the `conditions` hold.

    Args:
        loops: those given that value, conditions and guards need, outermost first.
        guards: conditions of branches that the access of the given side stands in. They hold too; outside of them value
            and conditions may mean nothing.
        never: the accesses never meet.
    """

    value: sympy.Expr | None
    loops: tuple[SymbolicLoop, ...] = ()
    conditions: tuple[sympy.Basic, ...] = ()
    guards: tuple[sympy.Basic, ...] = ()
    never: bool = False

    @property
    def varies(self) -> bool:
        """Whether different iterations of the outermost given loop need different values."""
        needed = _needed(self.loops, (self.value, *self.conditions))
        inner = [bound for loop in needed[1:] for bound in (loop.lo, loop.hi)]
        names = set().union(*(expr.free_symbols for expr in (self.value, *self.conditions, *inner)))
        return self.loops[0].variable in names


@dataclass
class _State:
    unknown: dict[sympy.Symbol, SymbolicLoop]
    loops: Sequence[SymbolicLoop]  # of both sides
    ranges: dict[sympy.Symbol, sympy.Expr]  # an iterator that is a whole subscript -> extent of that dimension
    found: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)
    conditions: list[sympy.Basic] = field(default_factory=list)


def solve(
    equations: Sequence[tuple[sympy.Expr, sympy.Expr]], unknown: Sequence[SymbolicLoop],
    given: Sequence[SymbolicLoop], *, extents: Sequence[sympy.Expr], facts: Sequence[sympy.Expr] = (),
) -> Solution | None:
    """Find the outermost of the unknown iterators.

    Args:
        equations: (given side, unknown side) of each dimension.
        extents: of the array, one per dimension; subscripts lie within, wherever the access of the given side happens.
        facts: expressions that are at least 0 there.

    Returns:
        None where the equations do not determine it.
    """
    inside = () if facts else zip(equations, extents, strict=True)
    ranges = {right: extent for (_, right), extent in inside}
    state = _State({loop.variable: loop for loop in unknown}, [*given, *unknown], ranges)
    pending = [part for a, b in equations for part in _split(sympy.expand(a - b), state.loops, _strides(a - b))]
    progress = True
    while progress:
        progress = False
        for equation in list(pending):
            left = sympy.expand(equation.xreplace(state.found))
            if left.is_Integer and left != 0:
                return Solution(None, never=True)
            if _use(left, state):
                pending.remove(equation)
                progress = True
    outermost = unknown[0].variable
    if outermost not in state.found:
        return None
    value = state.found[outermost]
    guards = tuple(dict.fromkeys(sympy.Ge(fact, 0, evaluate=False) for fact in facts))
    loops = _needed(given, (value, *state.conditions, *guards))
    return Solution(value, loops, tuple(dict.fromkeys(state.conditions)), guards)


def _use(left: sympy.Expr, state: _State) -> bool:
    """Use the equation `left = 0`; tells whether it is spent."""
    names = [name for name in state.unknown if name not in state.found and left.has(name)]
    if not names:
        if left != 0:
            state.conditions.append(sympy.Eq(left, 0))
        return True
    if len(names) > 1:
        return False
    name = names[0]
    factor = left.coeff(name)
    rest = sympy.expand(left - factor * name)
    if not factor.is_Integer or rest.has(name):
        return False
    if factor not in (1, -1):
        state.conditions.append(_multiple(rest, abs(int(factor))))
        value = sympy.expand(_quotient(-rest if factor > 0 else rest, abs(int(factor))))
    else:
        value = sympy.expand(-rest / factor)
    state.found[name] = value
    state.conditions += _range(value, state.unknown[name], state)
    return True


def _range(value: sympy.Expr, loop: SymbolicLoop, state: _State) -> list[sympy.Basic]:
    """Conditions under which an iterator takes a value, without those that always hold."""
    conditions = []
    extent = state.ranges.get(loop.variable)  # the value is then a subscript of the other side, within 0 and this
    low, high = extremes(value, state.loops)
    if not (at_least(low, loop.lo) or (extent is not None and loop.lo == 0)):
        conditions.append(sympy.Ge(value, loop.lo, evaluate=False))
    if not (at_least(loop.hi - 1, high) or loop.hi == extent):
        conditions.append(sympy.Lt(value, loop.hi, evaluate=False))
    if loop.step != 1:
        same = any(value == other.variable and (other.lo, other.step) == (loop.lo, loop.step) for other in state.loops)
        conditions += [] if same else [_multiple(value - loop.lo, loop.step)]
    return conditions


def _split(equation: sympy.Expr, loops: Sequence[SymbolicLoop], strides: Iterable[sympy.Expr]) -> list[sympy.Expr]:
    """`s * P + Q = 0  ->  P = 0, Q = 0` where always |Q| < s: what a flattened array of row length s says."""
    for stride in strides:
        factor = equation.coeff(stride) if stride.is_Symbol else _integer_part(equation, stride)
        rest = sympy.expand(equation - stride * factor)
        if factor == 0 or rest == 0 or rest.has(stride):
            continue
        low, high = extremes(rest, loops)
        if at_least(stride - 1, high) and at_least(low, 1 - stride):
            return [*_split(factor, loops, strides), rest]
    return [equation]


def _strides(expr: sympy.Expr) -> list[sympy.Expr]:
    """Symbols and integers that multiply something, the widest first."""
    terms = sympy.Add.make_args(sympy.expand(expr))
    symbols = sorted({factor for term in terms for factor in term.as_ordered_factors() if factor.is_Symbol}, key=str)
    numbers = sorted({abs(term.as_coeff_Mul()[0]) for term in terms if abs(term.as_coeff_Mul()[0]) > 1}, reverse=True)
    return [*symbols, *numbers]


def _integer_part(expr: sympy.Expr, stride: sympy.Integer) -> sympy.Expr:
    """Sum of the terms whose coefficient is a multiple of `stride`, divided by it."""
    terms = [term for term in sympy.Add.make_args(expr) if term.as_coeff_Mul()[0] % stride == 0]
    return sympy.Add(*terms) / stride


def _needed(given: Sequence[SymbolicLoop], exprs: Sequence[sympy.Basic]) -> tuple[SymbolicLoop, ...]:
    """Loops that the expressions name, and those that their bounds name; the outermost always."""
    names = set().union(*(expr.free_symbols for expr in exprs))
    kept: list[SymbolicLoop] = []
    for loop in reversed(given):
        if loop.variable in names or loop is given[0]:
            kept.insert(0, loop)
            names |= loop.lo.free_symbols | loop.hi.free_symbols
    return tuple(kept)


def _multiple(expr: sympy.Expr, of: int) -> sympy.Basic:
    return sympy.Eq(sympy.Function("remainder")(expr, sympy.Integer(of)), 0, evaluate=False)


def _quotient(expr: sympy.Expr, by: int) -> sympy.Expr:
    exact = expr / by
    return exact if all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(sympy.expand(exact))) else (
        sympy.Function("quotient")(expr, sympy.Integer(by)))
