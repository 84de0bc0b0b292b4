"""Integer expressions of the loop IR as SymPy expressions, and back.

Least and greatest values of symbolic expressions.

What the conditions around an access say about integers.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterates
from collections.abc import Mapping, Sequence

import sympy

from sparloom.fusion.program import Access, Iterator, Program
from sparloom.ir import I32, I64, Binary, Cast, Const, Expr, Load, Ref, Unary, walk

__all__ = ["Elements", "SymbolicLoop", "Symbols", "at_least", "extremes", "facts", "index_elements", "symbol"]

_OPAQUE = {"//": "quotient", "%": "remainder", "min": "least", "max": "greatest"}
_OPS = {name: op for op, name in _OPAQUE.items()}
_RELATIONS = {sympy.Eq: "==", sympy.Ge: ">=", sympy.Lt: "<"}


def symbol(name: str) -> sympy.Symbol:
    """Make the symbol of an iterator or scalar."""
    return sympy.Symbol(name, integer=True)


class SymbolicLoop:
    """An iterator with symbolic bounds: lo, lo + step, ... below hi."""

    def __init__(self, name: str, lo: sympy.Expr, hi: sympy.Expr, step: int) -> None:
        self.variable, self.lo, self.hi, self.step = symbol(name), lo, hi, step

    @property
    def trips(self) -> sympy.Expr | None:
        """Number of iterations, if the step divides the distance."""
        trips = sympy.expand((self.hi - self.lo) / self.step)
        whole = all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(trips))
        return trips if whole else None

    def primed(self, new: dict[sympy.Symbol, sympy.Symbol]) -> SymbolicLoop:
        """Rename it and what its bounds name."""
        lo, hi = self.lo.xreplace(new), self.hi.xreplace(new)
        return SymbolicLoop(new[self.variable].name, lo, hi, self.step)

    def __str__(self) -> str:
        stride = "" if self.step == 1 else f" step {self.step}"
        return f"{self.lo} <= {self.variable} < {self.hi}{stride}"


class Symbols:
    """Translation in both directions for the arrays of one program.

    An element of an integer array is `Indexed`; division, remainder, min and max are functions without algebra.
    """

    def __init__(self, program: Program) -> None:
        self._named = {array.name: array for array in program.arrays}
        self._labelled = {array.label: array for array in program.arrays}

    def expr(self, expr: Expr | None) -> sympy.Expr | None:
        """Translate; None where the analysis does not understand a part."""
        match expr:
            case Const(value) if isinstance(value, int):
                return sympy.Integer(value)
            case Ref(name):
                return symbol(name)
            case Cast(type, a) if type == I64:
                return self.expr(a)
            case Load(buffer, index):
                at, array = self.expr(index), self._named[buffer]
                integral = array.type in (I32, I64)
                return None if at is None or not integral else sympy.IndexedBase(symbol(array.label))[at]
            case Unary("-", a):
                inner = self.expr(a)
                return None if inner is None else -inner
            case Binary(op, a, b):
                return self._binary(op, self.expr(a), self.expr(b))
        return None

    def loop(self, iterator: Iterator) -> SymbolicLoop | None:
        """Translate a loop; None where its bounds are not understood."""
        lo, hi = self.expr(iterator.lo), self.expr(iterator.hi)
        return None if lo is None or hi is None else SymbolicLoop(iterator.name, lo, hi, iterator.step)

    def ir(self, expr: sympy.Basic) -> Expr:
        """Translate back to an i64 expression, or to a bool for a relation."""
        match expr:
            case sympy.Integer():
                return Const(int(expr), I64)
            case sympy.Symbol():
                return Ref(expr.name)
            case sympy.Indexed():
                array = self._labelled[expr.base.label.name]
                load = Load(array.name, self.ir(expr.indices[0]))
                return load if array.type == I64 else Cast(I64, load)
            case sympy.Add():
                return self._sum(expr)
            case sympy.Mul():
                first, *rest = expr.as_ordered_factors()
                product = self.ir(first)
                for factor in rest:
                    product = product * self.ir(factor)
                return product
            case sympy.core.relational.Relational():
                return Binary(_RELATIONS[type(expr)], self.ir(expr.lhs), self.ir(expr.rhs))
            case sympy.Function() if expr.func.__name__ in _OPS:
                return Binary(_OPS[expr.func.__name__], *(self.ir(arg) for arg in expr.args))
        raise TypeError(f"{expr!r} has no form in the loop IR")

    def _sum(self, expr: sympy.Add) -> Expr:
        terms = sorted(expr.as_ordered_terms(), key=lambda term: term.could_extract_minus_sign())
        total = self.ir(terms[0])
        for term in terms[1:]:
            negative = term.could_extract_minus_sign()
            total = total - self.ir(-term) if negative else total + self.ir(term)
        return total

    def _binary(self, op: str, a: sympy.Expr | None, b: sympy.Expr | None) -> sympy.Expr | None:
        if a is None or b is None:
            return None
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
        return sympy.Function(_OPAQUE[op])(a, b) if op in _OPAQUE else None


Elements = Mapping[str, tuple[sympy.Expr, sympy.Expr]]
"""Label of an integer array -> least and greatest of its elements."""


def extremes(
    expr: sympy.Expr, loops: Sequence[SymbolicLoop], elements: Elements | None = None,
) -> tuple[sympy.Expr | None, sympy.Expr | None]:
    """Find the least and greatest value of an affine expression over loops with at least one iteration.

    Args:
        loops: outermost first; bounds of inner ones may name outer ones.

    Returns:
        None where it is not known.
    """
    ends = []
    for least in (True, False):
        end = _of_elements(expr, elements or {}, least=least)
        for loop in reversed(loops):
            end = _replace(end, loop.variable, (loop.lo, loop.hi - 1), least=least)
            end = _of_elements(end, elements or {}, least=least)
        ends.append(end)
    return ends[0], ends[1]


def at_least(a: sympy.Expr | None, b: sympy.Expr | None) -> bool:
    """Tell whether surely a >= b."""
    if a is None or b is None:
        return False
    difference = sympy.expand(a - b)
    return bool(difference.is_Integer and difference >= 0)


def _of_elements(expr: sympy.Expr | None, elements: Elements, *, least: bool) -> sympy.Expr | None:
    """Put the extremes of arrays in place of their elements."""
    for atom in () if expr is None else expr.atoms(sympy.Indexed):
        if atom.base.label.name in elements:
            expr = _replace(expr, atom, elements[atom.base.label.name], least=least)
    return expr


def _replace(
    expr: sympy.Expr | None, atom: sympy.Basic, ends: tuple[sympy.Expr, sympy.Expr], *, least: bool,
) -> sympy.Expr | None:
    """Put an extreme of an atom in its place; None if the expression is not affine in it."""
    if expr is None or not expr.has(atom):
        return expr
    factor = expr.coeff(atom)
    rest = sympy.expand(expr - factor * atom)
    if not factor.is_Integer or rest.has(atom):
        return None
    return sympy.expand(rest + factor * ends[0 if (factor > 0) == least else 1])


_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def facts(program: Program, access: Access, loops: Sequence[SymbolicLoop]) -> tuple[sympy.Expr, ...]:
    """List expressions that are at least 0 wherever an access happens, those of outer conditions first.

    Understood are comparisons of integers, `not`, `and` that holds and `or` that does not; the rest says nothing.

    Args:
        loops: those around the access that are understood; no other iterator occurs in the result.
    """
    symbols, elements, found = Symbols(program), index_elements(program), []
    unknown = {symbol(iterator.name) for iterator in access.loops} - {loop.variable for loop in loops}
    for condition in access.conditions:
        for relation in () if condition is None else _relations(condition, holds=True):
            operands = (relation.a, relation.b)
            a, b = (symbols.expr(operand) if _integral(program, operand) else None for operand in operands)
            if a is not None and b is not None:
                found += _at_least_zero(relation.op, sympy.expand(a - b), loops, elements)
    return tuple(fact for fact in found if not fact.free_symbols & unknown)


def index_elements(program: Program) -> Elements:
    """Extremes of the index arrays of sparse arguments."""
    found: dict[str, tuple[sympy.Expr, sympy.Expr]] = {}
    scalars = {scalar.source: symbol(scalar.name) for scalar in program.scalars}
    for array in program.arrays:
        owner, *attribute = array.source or ("",)
        if attribute == ["p"]:
            found[array.label] = (sympy.Integer(0), scalars[owner, "i", "shape", 0])
        elif attribute == ["i"]:
            found[array.label] = (sympy.Integer(0), scalars[owner, "shape", 1] - 1)
    return found


def _relations(condition: Expr, *, holds: bool) -> Iterates[Binary]:
    match condition:
        case Unary("not", inner):
            yield from _relations(inner, holds=not holds)
        case Binary(op, a, b) if op == ("and" if holds else "or"):
            yield from _relations(a, holds=holds)
            yield from _relations(b, holds=holds)
        case Binary(op, a, b) if op in _NEGATED:
            yield Binary(op if holds else _NEGATED[op], a, b)


def _integral(program: Program, expr: Expr) -> bool:
    """Whether it is made of integers that the loops do not change."""
    others = {scalar.name for scalar in program.scalars if scalar.type != I64}
    nodes = list(walk(expr))
    written = any(isinstance(node, Load) and node.buffer in program.written() for node in nodes)
    return not written and not any(getattr(node, "name", None) in others for node in nodes)


def _at_least_zero(
    op: str, difference: sympy.Expr, loops: Sequence[SymbolicLoop], elements: Elements,
) -> list[sympy.Expr]:
    """Say `difference op 0` by expressions that are at least 0."""
    match op:
        case ">":
            return [difference - 1]
        case ">=":
            return [difference]
        case "<":
            return [-difference - 1]
        case "<=":
            return [-difference]
        case "==":
            return [difference, -difference]
    least, greatest = extremes(difference, loops, elements)
    above = [difference - 1] if at_least(least, sympy.Integer(0)) else []
    return above or ([-difference - 1] if at_least(sympy.Integer(0), greatest) else [])
