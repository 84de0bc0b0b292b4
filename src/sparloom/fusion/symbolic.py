"""Symbolic integer expressions: translation between the loop IR and SymPy, value ranges, and checks of subscripts."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import sympy

from sparloom.fusion.program import Access, FusedProgram, Iterator, SourceLocation
from sparloom.ir import I32, I64, Binary, Cast, Const, Expr, Load, Ref, Unary

_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_OPAQUE = {"//": "quotient", "%": "remainder", "min": "least", "max": "greatest"}
_OPS = {name: op for op, name in _OPAQUE.items()}
_RELATIONS = {sympy.Eq: "==", sympy.Ge: ">=", sympy.Lt: "<"}
Elements = Mapping[str, tuple[sympy.Expr, sympy.Expr]]
"""Label of an integer array -> minimum and maximum of its elements."""


def symbol(name: str) -> sympy.Symbol:
    """Return the symbol of an iterator or scalar."""
    return sympy.Symbol(name, integer=True)


class SymbolicLoop:
    """A loop with symbolic bounds: lo, lo + step, ... below hi."""

    def __init__(self, name: str, lo: sympy.Expr, hi: sympy.Expr, step: int) -> None:
        self.variable, self.lo, self.hi, self.step = symbol(name), lo, hi, step

    @property
    def trips(self) -> sympy.Expr | None:
        """Number of iterations; None if the step may not divide hi - lo."""
        trips = sympy.expand((self.hi - self.lo) / self.step)
        whole = all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(trips))
        return trips if whole else None

    def primed(self, new: dict[sympy.Symbol, sympy.Symbol]) -> SymbolicLoop:
        """Rename the iterator and the symbols in its bounds."""
        lo, hi = self.lo.xreplace(new), self.hi.xreplace(new)
        return SymbolicLoop(new[self.variable].name, lo, hi, self.step)

    def __str__(self) -> str:
        stride = "" if self.step == 1 else f" step {self.step}"
        return f"{self.lo} <= {self.variable} < {self.hi}{stride}"


class Symbols:
    """Translates expressions of one program to SymPy and back.

    An element of an integer array becomes `Indexed`; division, remainder, min and max become uninterpreted functions.
    """

    def __init__(self, program: FusedProgram) -> None:
        self._named = {array.name: array for array in program.arrays}
        self._labelled = {array.label: array for array in program.arrays}

    def expr(self, expr: Expr | None) -> sympy.Expr | None:
        """Translate to SymPy; None if a part is not supported."""
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
        """Translate a loop; None if its bounds are not supported."""
        lo, hi = self.expr(iterator.lo), self.expr(iterator.hi)
        return None if lo is None or hi is None else SymbolicLoop(iterator.name, lo, hi, iterator.step)

    def ir(self, expr: sympy.Basic) -> Expr:
        """Translate to an i64 expression of the loop IR, or to a bool for a relation."""
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
        raise TypeError(f"{expr!r} has no equivalent in the loop IR")

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
        if op in _ARITHMETIC:
            return _ARITHMETIC[op](a, b)
        return sympy.Function(_OPAQUE[op])(a, b) if op in _OPAQUE else None


def value_range(
    expr: sympy.Expr, loops: Sequence[SymbolicLoop], elements: Elements | None = None,
) -> tuple[sympy.Expr | None, sympy.Expr | None]:
    """Find the minimum and maximum of an affine expression over loops that have at least one iteration.

    Loops are given outermost first; bounds of inner ones may contain iterators of outer ones. Unknown ends are None.
    """

    def end(*, least: bool) -> sympy.Expr | None:
        found = _of_elements(expr, elements or {}, least=least)
        for loop in reversed(loops):
            found = _replace(found, loop.variable, (loop.lo, loop.hi - 1), least=least)
            found = _of_elements(found, elements or {}, least=least)
        return found

    return end(least=True), end(least=False)


def is_at_least(a: sympy.Expr | None, b: sympy.Expr | None) -> bool:
    """Tell whether a >= b is certain."""
    if a is None or b is None:
        return False
    difference = sympy.expand(a - b)
    return bool(difference.is_Integer and difference >= 0)


def _of_elements(expr: sympy.Expr | None, elements: Elements, *, least: bool) -> sympy.Expr | None:
    """Replace elements of arrays by the minimum or maximum of these arrays."""
    for atom in () if expr is None else expr.atoms(sympy.Indexed):
        if atom.base.label.name in elements:
            expr = _replace(expr, atom, elements[atom.base.label.name], least=least)
    return expr


def _replace(
    expr: sympy.Expr | None, atom: sympy.Basic, ends: tuple[sympy.Expr, sympy.Expr], *, least: bool,
) -> sympy.Expr | None:
    """Replace an atom by its minimum or maximum; None if the expression is not affine in it."""
    if expr is None or not expr.has(atom):
        return expr
    factor = expr.coeff(atom)
    rest = sympy.expand(expr - factor * atom)
    if not factor.is_Integer or rest.has(atom):
        return None
    return sympy.expand(rest + factor * ends[0 if (factor > 0) == least else 1])


def _index_elements(program: FusedProgram) -> Elements:
    """Return the value ranges of the index arrays of sparse arguments."""
    found: dict[str, tuple[sympy.Expr, sympy.Expr]] = {}
    scalars = {scalar.source: symbol(scalar.name) for scalar in program.scalars}
    for array in program.arrays:
        owner, *attribute = array.source or ("",)
        if attribute == ["p"]:
            found[array.label] = (sympy.Integer(0), scalars[owner, "i", "shape", 0])
        elif attribute == ["i"]:
            found[array.label] = (sympy.Integer(0), scalars[owner, "shape", 1] - 1)
    return found


@dataclass(frozen=True)
class BoundCheck:
    """Requires 0 <= least and greatest < extent if the marked loop `nest` (0 or 1) has iterations."""

    label: str
    axis: int
    nest: int
    least: Expr
    greatest: Expr
    extent: Expr
    location: SourceLocation

    @property
    def numbers(self) -> tuple[Expr, ...]:
        """The expressions whose values `check` takes."""
        return self.least, self.greatest, self.extent

    def check(self, iterations: int, least: int, greatest: int, extent: int) -> None:
        """Refuse a call of so many iterations of the marked loop in which the subscript may be out of bounds."""
        if iterations and least <= greatest and not 0 <= least <= greatest < extent:
            raise ValueError(f"{self.location}: subscript {self.axis} of {self.label} runs from {least} to {greatest}, "
                             f"but its extent is {extent}: change the bounds of the loops; an `if` does not count")


def bound_checks(program: FusedProgram) -> tuple[BoundCheck, ...]:
    """List the subscripts that each call must check, because the program does not prove them in bounds.

    Row pointers and columns of sparse arguments are in range, which is checked separately. A subscript under an `if` is
    checked as if its branch always ran. Not checked: elements of other index arrays, products of iterators, mutable
    variables.
    """
    elements = _index_elements(program)
    found: dict[tuple[object, ...], BoundCheck] = {}
    for number, nest in enumerate((program.first, program.second)):
        for access in nest.accesses:
            for check in _checks(program, access, elements, number):
                found.setdefault((check.label, check.axis, check.numbers), check)
    return tuple(found.values())


def _checks(program: FusedProgram, access: Access, elements: Elements, number: int) -> list[BoundCheck]:
    symbols = Symbols(program)
    loops = [symbols.loop(iterator) for iterator in access.loops]
    if None in loops:
        return []
    array, checks = program.array(access.array), []
    for axis, (subscript, extent) in enumerate(zip(access.subscripts, array.extents, strict=True)):
        value = symbols.expr(subscript)
        least, greatest = (None, None) if value is None else value_range(sympy.expand(value), loops, elements)
        proven = is_at_least(least, sympy.Integer(0)) and is_at_least(symbols.expr(extent) - 1, greatest)
        if proven or any(end is None or end.atoms(sympy.Indexed) for end in (least, greatest)):
            continue
        checks.append(BoundCheck(
            array.label, axis, number, symbols.ir(least), symbols.ir(greatest), extent, access.location))
    return checks


def fold(op: str, exprs: Iterable[Expr]) -> Expr:
    """Combine expressions by a binary operator, from the left."""
    return reduce(lambda a, b: Binary(op, a, b), exprs)
