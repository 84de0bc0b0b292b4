"""Integer expressions as sums of products, to tell what they are in terms of loops.

    row_outer * 64 + row_inner - row_outer * 64  ->  row_inner
    offset = base + row * lead + col                              strides of loops, for products of tiles
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparloom.ir import Binary, Const, Expr, Ref, simplify_expr, walk
from sparloom.ragged.dimensions import free

__all__ = ["Polynomial", "difference", "normal", "quotient"]

Factors = tuple[Expr, ...]  # sorted; none is a sum, a product or a constant


class Polynomial:
    """Coefficients of products of factors."""

    def __init__(self, terms: Mapping[Factors, int]) -> None:
        self.terms = {factors: count for factors, count in terms.items() if count}

    @classmethod
    def of(cls, expr: Expr) -> Polynomial:
        """Multiply out an i64 expression."""
        match expr:
            case Const(value):
                return cls({(): int(value)})
            case Binary("+" | "-" as op, a, b):
                total = dict(cls.of(a).terms)
                for factors, count in cls.of(b).terms.items():
                    total[factors] = total.get(factors, 0) + (count if op == "+" else -count)
                return cls(total)
            case Binary("*", a, b):
                product: dict[Factors, int] = {}
                for left, count in cls.of(a).terms.items():
                    for right, times in cls.of(b).terms.items():
                        factors = tuple(sorted((*left, *right), key=repr))
                        product[factors] = product.get(factors, 0) + count * times
                return cls(product)
        return cls({(expr,): 1})

    def joined(self) -> Polynomial:
        """Undo divisions: n * (x // n) + x % n  ->  x."""
        terms = dict(self.terms)
        for factors, count in self.terms.items():
            for number, factor in enumerate(factors):
                match factor:
                    case Binary("//", x, Const(n) as step) if count % n == 0:
                        rest = (*factors[:number], *factors[number + 1:])
                        left = tuple(sorted((*rest, Binary("%", x, step)), key=repr))
                        if terms.get(left) == count // n:
                            del terms[factors], terms[left]
                            for whole, times in Polynomial.of(_product((*rest, x), count // n)).terms.items():
                                terms[whole] = terms.get(whole, 0) + times
                            return Polynomial(terms).joined()
        return self

    def expr(self) -> Expr:
        """Write the sum."""
        total: Expr | None = None
        for factors, count in sorted(self.terms.items(), key=lambda term: (len(term[0]) == 0, term[1] < 0)):
            term = _product(factors, abs(count))
            if total is None:
                total = term if count > 0 else Const(0) - term
            else:
                total = total + term if count > 0 else total - term
        return simplify_expr(total or Const(0))

    def split(self, names: Collection[str]) -> tuple[Expr, dict[str, Expr]] | None:
        """Write it as base + sum of name * stride; None if it is no such sum.

        Args:
            names: of which base and strides are free.
        """
        base: dict[Factors, int] = {}
        strides: dict[str, dict[Factors, int]] = {name: {} for name in names}
        for factors, count in self.terms.items():
            inside = [factor for factor in factors if free(factor) & strides.keys()]
            if not inside:
                base[factors] = count
                continue
            if len(inside) > 1 or not isinstance(inside[0], Ref):
                return None
            rest = list(factors)
            rest.remove(inside[0])
            strides[inside[0].name][tuple(rest)] = count
        return Polynomial(base).expr(), {name: Polynomial(each).expr() for name, each in strides.items()}


def difference(a: Expr, b: Expr) -> Expr:
    """Subtract, and leave out what cancels."""
    return (Polynomial.of(a - b)).expr()


def normal(expr: Expr) -> Expr:
    """Write sums of minima as the minimum of sums, each once: o * 64 + min(64, n - o * 64)  ->  min(o * 64 + 64, n)."""
    if not any(isinstance(node, Binary) and node.op == "min" for node in walk(expr)):
        return expr
    *first, last = sorted((Polynomial(dict(terms)).expr() for terms in _sums(expr)), key=repr)
    total = last
    for each in reversed(first):
        total = Binary("min", each, total)
    return total


def _sums(expr: Expr) -> set[frozenset[tuple[Factors, int]]]:
    """Sums of which an expression is the minimum."""
    match expr:
        case Binary("min", a, b):
            return _sums(a) | _sums(b)
        case Binary("+" | "-" as op, a, b):
            rights = _sums(b) if op == "+" else {_key(Polynomial.of(b))}
            return {_key(Polynomial.of(Binary(op, Polynomial(dict(left)).expr(), Polynomial(dict(right)).expr())))
                    for left in _sums(a) for right in rights}
    return {_key(Polynomial.of(expr))}


def _key(given: Polynomial) -> frozenset[tuple[Factors, int]]:
    return frozenset(given.terms.items())


def quotient(expr: Expr, factor: int, limits: Mapping[str, int]) -> tuple[Expr, Expr] | None:
    """Find q and r with expr = q * factor + r and 0 <= r < factor; None if that cannot be shown.

    Args:
        limits: constants that loops stay below.
    """
    whole: dict[Factors, int] = {}
    rest: dict[Factors, int] = {}
    most = 0
    for factors, count in Polynomial.of(expr).terms.items():
        if count % factor == 0:
            whole[factors] = count // factor
            continue
        rest[factors] = count
        match factors:
            case () if count >= 0:
                most += count
            case (Ref(name),) if name in limits and count > 0:
                most += count * (limits[name] - 1)
            case _:
                return None
    return (Polynomial(whole).expr(), Polynomial(rest).expr()) if most < factor else None


def _product(factors: Factors, count: int) -> Expr:
    if not factors:
        return Const(count)
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total * count if count != 1 else total
