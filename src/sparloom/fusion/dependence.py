"""Dependences between two marked loops: Equation 1 and its duals, and their simplification.

    flow    the second loop reads what the first wrote
    anti    the second loop writes what the first read
    output  both write

Each says that iteration j of the second loop must run after iteration i of the first, so one graph holds all three.

Two accesses touch the same element where an integer equation per dimension holds: `subscript of one = subscript of the
other`. The iterators of one access are known, and those of the other are solved for, one at a time. Equations that
cannot be used are dropped, which only adds dependences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import sympy

from sparloom.fusion.program import Access, FusedProgram, MarkedLoop, refuse
from sparloom.fusion.symbolic import SymbolicLoop, Symbols, is_at_least, symbol, value_range


@dataclass(frozen=True)
class Solution:
    """The `value` of the unknown outermost iterator, for each iteration of `loops` in which the `conditions` hold.

    Args:
        loops: the known loops that value and conditions need, outermost first.
        never: the accesses never touch the same element.
    """

    value: sympy.Expr | None
    loops: tuple[SymbolicLoop, ...] = ()
    conditions: tuple[sympy.Basic, ...] = ()
    never: bool = False

    @property
    def varies(self) -> bool:
        """Tell whether the value depends on the iteration of the outermost known loop."""
        needed = _needed(self.loops, (self.value, *self.conditions))
        inner = [bound for loop in needed[1:] for bound in (loop.lo, loop.hi)]
        names = set().union(*(expr.free_symbols for expr in (self.value, *self.conditions, *inner)))
        return self.loops[0].variable in names


@dataclass(frozen=True)
class Dependence:
    """A dependence between two accesses to one array.

    Args:
        source, sink: text of the accesses in the first and the second loop.
        relation: before simplification, in the form of Equation 2.
        solved: "i" if `solution` maps iterations of the second loop to those of the first, "j" for the reverse.
    """

    kind: Literal["flow", "anti", "output"]
    array: str
    source: str
    sink: str
    relation: str
    solved: Literal["i", "j"]
    solution: Solution
    iterations: tuple[SymbolicLoop, SymbolicLoop]

    @property
    def simplified(self) -> str:
        """The relation after simplification."""
        first, second = self.iterations
        value = self.solution.value
        left, right = (second.variable, value) if self.solved == "i" else (value, first.variable)
        limits = [*map(str, self.solution.loops), *map(_condition, self.solution.conditions)]
        return f"{{[{left}] -> [{right}] : {' and '.join(limits)}}}"

    @property
    def offset(self) -> int | None:
        """The constant c if iteration number j depends only on iteration number j + c; None otherwise."""
        first, second = self.iterations
        if self.solved != "i" or len(self.solution.loops) != 1 or first.step != second.step:
            return None
        shift = sympy.expand((self.solution.value - first.lo) - (second.variable - second.lo))
        return int(shift) // first.step if shift.is_Integer and shift % first.step == 0 else None

    def __str__(self) -> str:
        return f"{self.kind} {self.array}: {self.source} -> {self.sink}\n    {self.relation}\n    = {self.simplified}"


def dependences(program: FusedProgram) -> tuple[Dependence, ...]:
    """Derive all dependences between the loops; refuse accesses that may touch one element in all pairs of iterations.

    Source: tile fusion §3.2.
    """
    found = {}
    for source, sink in product(_distinct(program.first), _distinct(program.second)):
        if source.array == sink.array and (source.writes or sink.writes):
            dependence = _dependence(program, source, sink)
            if dependence is not None:
                found.setdefault((dependence.array, dependence.simplified), dependence)
    return tuple(found.values())


def check_trip_counts(program: FusedProgram) -> None:
    """Refuse loops whose numbers of iterations differ, or are not known to be equal at compile time."""
    symbols = Symbols(program)
    loops = [symbols.loop(nest.iterator) for nest in (program.first, program.second)]
    if None not in loops:
        (first, second) = loops
        alike = first.step == second.step and sympy.expand((first.hi - first.lo) - (second.hi - second.lo)) == 0
        if alike or (first.trips is not None and first.trips == second.trips):
            return
    first, second = program.first, program.second
    raise refuse(second.location, f"different trip counts: the loop in line {first.location.line} "
                 f"is `{first.location.text}`; write the bounds of both with the same names")


def check_independent(program: FusedProgram, nest: MarkedLoop) -> None:
    """Check that no iteration of a marked loop touches an element that another iteration writes.

    Departure: the paper resolves such conflicts with atomic operations.
    """
    symbols = Symbols(program)
    accesses = _distinct(nest)
    for a, b in product(accesses, accesses):
        if a.array == b.array and a.writes:
            loops = [_loops(access, program, symbols) for access in (a, b)]
            new = {loop.variable: sympy.Symbol(f"{loop.variable}'", integer=True) for loop in loops[1]}
            primed = [loop.primed(new) for loop in loops[1]]
            equations = [(left, right.xreplace(new)) for left, right in
                         zip(_subscripts(a, program, symbols), _subscripts(b, program, symbols), strict=True)]
            solution = _solve(equations, primed, loops[0], extents=_extents(program, a.array, symbols))
            if solution is None or not (solution.never or solution.value == loops[0][0].variable):
                raise refuse(a.location, f"iterations of {nest.iterator.name} depend on each other: "
                             f"{_text(a, program)} is written, and {_text(b, program)} of another iteration may be the "
                             f"same element: iterations of a marked loop must be independent")


def _dependence(program: FusedProgram, source: Access, sink: Access) -> Dependence | None:
    symbols = Symbols(program)
    first, second = _loops(source, program, symbols), _loops(sink, program, symbols)
    left, right = _subscripts(sink, program, symbols), _subscripts(source, program, symbols)
    extents = _extents(program, source.array, symbols)
    forward = _solve(list(zip(left, right, strict=True)), first, second, extents=extents)
    backward = _solve(list(zip(right, left, strict=True)), second, first, extents=extents)
    best = min((each for each in (forward, backward) if each is not None), key=lambda each: len(each.loops),
               default=None)
    if best is None or not (best.never or best.varies):
        verb, line = "writes" if source.writes else "reads", source.location.line
        raise refuse(sink.location, f"{_text(sink, program)} may be touched by every iteration of "
                     f"{source.loops[0].name}, which {verb} {_text(source, program)} in line {line}: subscripts must "
                     "tell which")
    if best.never:
        return None
    kind = "flow" if not sink.writes else "output" if source.writes else "anti"
    limits = [*map(str, first), *map(str, second), f"{_flat(left, extents)} = {_flat(right, extents)}"]
    relation = f"{{[{second[0].variable}] -> [{first[0].variable}] : {' and '.join(limits)}}}"
    return Dependence(
        kind, program.array(source.array).label, _text(source, program), _text(sink, program), relation,
        "i" if best is forward else "j", best, (first[0], second[0]))


def _flat(subscripts: Sequence[sympy.Expr], extents: Sequence[sympy.Expr]) -> sympy.Expr:
    index = subscripts[0]
    for subscript, extent in zip(subscripts[1:], extents[1:], strict=True):
        index = index * extent + subscript
    return index


def _distinct(nest: MarkedLoop) -> list[Access]:
    """Return the accesses of a loop without duplicates."""
    kept = {(each.array, each.subscripts, each.writes, each.loops): each
            for each in reversed(nest.accesses)}
    return list(reversed(kept.values()))


def _loops(access: Access, program: FusedProgram, symbols: Symbols) -> list[SymbolicLoop]:
    """Return the loops around an access; unsupported ones are left out if no subscript depends on them."""
    known: list[SymbolicLoop] = []
    unknown: set[sympy.Symbol] = set()
    for iterator in access.loops:
        loop = symbols.loop(iterator)
        bounds = () if loop is None else (loop.lo, loop.hi)
        if loop is None or any(bound.free_symbols & unknown or _changing(bound, program) for bound in bounds):
            unknown.add(symbol(iterator.name))
        else:
            known.append(loop)
    named = set().union(*(expr.free_symbols for expr in _subscripts(access, program, symbols)))
    if named & unknown or not known or known[0].variable.name != access.loops[0].name:
        raise refuse(access.location, f"the bounds of the loops around {_text(access, program)} are not supported: "
                     "use sums and products of iterators, scalars and elements of integer arrays that do not change")
    return known


def _subscripts(access: Access, program: FusedProgram, symbols: Symbols) -> list[sympy.Expr]:
    exprs = [symbols.expr(each) for each in access.subscripts]
    for expr in exprs:
        if expr is None:
            raise refuse(access.location, f"the subscripts of {_text(access, program)} depend on a variable that "
                         "changes, or on an operation that is not supported: use sums and products of iterators, "
                         "scalars and elements of integer arrays")
        label = _changing(expr, program)
        if label is not None:
            raise refuse(access.location, f"the subscripts of {_text(access, program)} are read from {label}, which "
                         "the loops write: they must be known before")
    return exprs


def _changing(expr: sympy.Expr, program: FusedProgram) -> str | None:
    """Return the label of an array that an expression reads and the loops write, or None."""
    written = {program.array(name).label for name in program.written()}
    return min({indexed.base.label.name for indexed in expr.atoms(sympy.Indexed)} & written, default=None)


def _extents(program: FusedProgram, array: str, symbols: Symbols) -> list[sympy.Expr]:
    return [symbols.expr(extent) for extent in program.array(array).extents]


def _text(access: Access, program: FusedProgram) -> str:
    symbols = Symbols(program)
    parts = [symbols.expr(each) for each in access.subscripts]
    return f"{program.array(access.array).label}[{', '.join('?' if part is None else str(part) for part in parts)}]"


def _condition(condition: sympy.Basic) -> str:
    match condition:
        case sympy.Eq(lhs=left, rhs=right):
            return f"{left} = {right}"
        case sympy.Ge(lhs=left, rhs=right):
            return f"{right} <= {left}"
    return str(condition)


@dataclass
class _State:
    unknown: dict[sympy.Symbol, SymbolicLoop]
    loops: Sequence[SymbolicLoop]  # known and unknown
    ranges: dict[sympy.Symbol, sympy.Expr]  # iterator that is a whole subscript -> extent of that dimension
    found: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)
    conditions: list[sympy.Basic] = field(default_factory=list)


def _solve(
    equations: Sequence[tuple[sympy.Expr, sympy.Expr]], unknown: Sequence[SymbolicLoop],
    known: Sequence[SymbolicLoop], *, extents: Sequence[sympy.Expr],
) -> Solution | None:
    """Solve for the outermost unknown iterator; None if the equations do not determine it.

    Args:
        equations: (known side, unknown side) of each dimension.
        extents: of the array; the known subscripts are in bounds.
    """
    ranges = {right: extent for (_, right), extent in zip(equations, extents, strict=True)}
    state = _State({loop.variable: loop for loop in unknown}, [*known, *unknown], ranges)
    pending = [part for a, b in equations for part in _split(sympy.expand(a - b), state.loops, _strides(a - b))]
    progress = True
    while progress:
        progress = False
        for equation in list(pending):
            left = sympy.expand(equation.xreplace(state.found))
            if left.is_Integer and left != 0:
                return Solution(None, never=True)
            if _apply(left, state):
                pending.remove(equation)
                progress = True
    outermost = unknown[0].variable
    if outermost not in state.found:
        return None
    value = state.found[outermost]
    loops = _needed(known, (value, *state.conditions))
    return Solution(value, loops, tuple(dict.fromkeys(state.conditions)))


def _apply(left: sympy.Expr, state: _State) -> bool:
    """Apply the equation `left = 0`; return whether it has been used up."""
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
    """Return the conditions for an iterator to take a value, without those that always hold."""
    conditions = []
    extent = state.ranges.get(loop.variable)  # then the value is a known subscript, in [0, extent)
    low, high = value_range(value, state.loops)
    if not (is_at_least(low, loop.lo) or (extent is not None and loop.lo == 0)):
        conditions.append(sympy.Ge(value, loop.lo, evaluate=False))
    if not (is_at_least(loop.hi - 1, high) or loop.hi == extent):
        conditions.append(sympy.Lt(value, loop.hi, evaluate=False))
    if loop.step != 1:
        same = any(value == other.variable and (other.lo, other.step) == (loop.lo, loop.step) for other in state.loops)
        conditions += [] if same else [_multiple(value - loop.lo, loop.step)]
    return conditions


def _split(equation: sympy.Expr, loops: Sequence[SymbolicLoop], strides: Iterable[sympy.Expr]) -> list[sympy.Expr]:
    """`s * P + Q = 0  ->  P = 0, Q = 0` if |Q| < s: separates the dimensions of a flattened array of row length s."""
    for stride in strides:
        factor = equation.coeff(stride) if stride.is_Symbol else _integer_part(equation, stride)
        rest = sympy.expand(equation - stride * factor)
        if factor == 0 or rest == 0 or rest.has(stride):
            continue
        low, high = value_range(rest, loops)
        if is_at_least(stride - 1, high) and is_at_least(low, 1 - stride):
            return [*_split(factor, loops, strides), rest]
    return [equation]


def _strides(expr: sympy.Expr) -> list[sympy.Expr]:
    """Return symbols and integers that occur as factors, the largest integer first."""
    terms = sympy.Add.make_args(sympy.expand(expr))
    symbols = sorted({factor for term in terms for factor in term.as_ordered_factors() if factor.is_Symbol}, key=str)
    numbers = sorted({abs(term.as_coeff_Mul()[0]) for term in terms if abs(term.as_coeff_Mul()[0]) > 1}, reverse=True)
    return [*symbols, *numbers]


def _integer_part(expr: sympy.Expr, stride: sympy.Integer) -> sympy.Expr:
    """Sum the terms whose coefficient is a multiple of `stride`, divided by it."""
    terms = [term for term in sympy.Add.make_args(expr) if term.as_coeff_Mul()[0] % stride == 0]
    return sympy.Add(*terms) / stride


def _needed(known: Sequence[SymbolicLoop], exprs: Sequence[sympy.Basic]) -> tuple[SymbolicLoop, ...]:
    """Return the outermost loop, and the loops on which the expressions or bounds of such loops depend."""
    names = set().union(*(expr.free_symbols for expr in exprs))
    kept: list[SymbolicLoop] = []
    for loop in reversed(known):
        if loop.variable in names or loop is known[0]:
            kept.insert(0, loop)
            names |= loop.lo.free_symbols | loop.hi.free_symbols
    return tuple(kept)


def _multiple(expr: sympy.Expr, of: int) -> sympy.Basic:
    return sympy.Eq(sympy.Function("remainder")(expr, sympy.Integer(of)), 0, evaluate=False)


def _quotient(expr: sympy.Expr, by: int) -> sympy.Expr:
    exact = expr / by
    return exact if all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(sympy.expand(exact))) else (
        sympy.Function("quotient")(expr, sympy.Integer(by)))
