"""Integer expressions of the loop IR as SymPy expressions, and back."""

from __future__ import annotations

import sympy

from sparloom.fusion.program import Iterator, Program
from sparloom.ir import I32, I64, Binary, Cast, Const, Expr, Load, Ref, Unary

__all__ = ["SymbolicLoop", "Symbols", "symbol"]

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
