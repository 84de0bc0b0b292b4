"""Named dimensions, and integer expressions over them.

Integer expressions as sums of products, to tell what they are in terms of loops.

    row_outer * 64 + row_inner - row_outer * 64  ->  row_inner
    offset = base + row * lead + col                              strides of loops, for products of tiles

Extents that are the same for all iterations of a tile.

    (outer * m + inner + c) // m  ->  outer + c // m          where 0 <= inner < factor and no multiple of m is crossed
    (outer * m + inner + c) // (k m)  ->  (outer + c // m) // k                                               likewise

So a vloop whose extent is rounded to the tile no longer depends on the loop inside of the tile, and may stand outside
of it: for k in 0 .. row // 8 * 8 becomes for k in 0 .. row_outer * 8, row being row_outer * 8 + row_inner.

Source: CoRa §5.2 (simplification of extents), §7.1 (trmm).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from sparloom.ir import I64, Binary, Const, Expr, Ref, is_name, rebuild, simplify_expr, walk

__all__ = [
    "Axis", "Dim", "Polynomial", "canonical", "checked_axes", "constant_limit", "difference", "dims", "expanded",
    "free", "integer", "normal", "quotient", "replaced", "round_up", "without_inner",
]

Dim = Ref  # the name of a loop, and of the tensor dimensions that it runs along
Axis = tuple[Dim, Expr]


def dims(names: str) -> tuple[Dim, ...]:
    """Make named dimensions from names with spaces between.

    Raises:
        ValueError: a name is unusable.
    """
    for name in names.split():
        if not is_name(name):
            raise ValueError(f"dimension {name!r}: take letters, digits and single _ after a first letter, no word of "
                             "C")
    return tuple(Ref(name) for name in names.split())


def integer(value: Expr | int) -> Expr:
    """Give an int its i64 constant."""
    return Const(value, I64) if isinstance(value, int) else value


def checked_axes(owner: str, axes: Mapping[Dim, Expr | int] | Iterable[tuple[Dim, Expr | int]]) -> tuple[Axis, ...]:
    """Check that every extent reads only axes before it; ints become constants.

    Raises:
        ValueError: it does not, an extent is negative, or a dimension occurs twice.
    """
    found: dict[str, Axis] = {}
    for dim, extent in axes.items() if isinstance(axes, Mapping) else axes:
        expr = simplify_expr(integer(extent))
        late = sorted(free(expr) - set(found))
        if late:
            raise ValueError(f"{owner}: the extent of {dim.name} depends on {late[0]}, which does not stand before it: "
                             f"put {late[0]} first")
        if isinstance(expr, Const) and expr.value < 0:
            raise ValueError(f"{owner}: the extent of {dim.name} is {expr.value}: extents are at least 0")
        if dim.name in found:
            raise ValueError(f"{owner}: dimension {dim.name} occurs twice: make another name by dims()")
        found[dim.name] = (dim, expr)
    return tuple(found.values())


def free(expr: Expr) -> set[str]:
    """Name the dimensions and variables that an expression reads."""
    return {node.name for node in walk(expr) if isinstance(node, Ref)}


def replaced(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Put expressions in place of names, all at once."""
    if isinstance(expr, Ref):
        return values.get(expr.name, expr)
    return rebuild(expr, expr=lambda inner: replaced(inner, values), body=lambda inner: inner)


def expanded(expr: Expr, defined: Mapping[str, Expr]) -> Expr:
    """Put what they are defined as in place of names, until none is left."""
    while free(expr) & defined.keys():
        expr = replaced(expr, defined)
    return expr


def canonical(chosen: Iterable[Dim]) -> dict[str, Expr]:
    """Number dimensions x0, x1, ... in the order given."""
    return {dim.name: Ref(f"x{number}") for number, dim in enumerate(chosen)}


def round_up(expr: Expr, multiple: int) -> Expr:
    """Make the least multiple of `multiple` that is at least `expr`."""
    if multiple == 1:
        return expr
    return simplify_expr(Binary("//", expr + (multiple - 1), Const(multiple)) * multiple)


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


def without_inner(expr: Expr, inner: str, factor: int) -> Expr:
    """Simplify by the rule above, wherever it applies.

    Args:
        inner: a name for numbers from 0 to factor - 1.
    """
    expr = simplify_expr(rebuild(expr, expr=lambda part: without_inner(part, inner, factor), body=lambda body: body))
    match expr:
        case Binary("//", total, Const(multiple)):
            return _quotient(total, int(multiple), inner=inner, factor=factor) or expr
    return expr


def constant_limit(extent: Expr) -> int | None:
    """Give a constant that an extent does not exceed, if one is plain."""
    match extent:
        case Const(value):
            return int(value)
        case Binary("min", a, b):
            known = [limit for limit in (constant_limit(a), constant_limit(b)) if limit is not None]
            return min(known, default=None)
    return None


def _quotient(total: Expr, multiple: int, *, inner: str, factor: int) -> Expr | None:
    whole: list[tuple[Expr, int]] = []
    constant = places = 0
    for term in _terms(total):
        match term:
            case Const(value):
                constant += int(value)
            case Ref(name) if name == inner:
                places += 1
            case Binary("*", base, Const(value)):
                whole.append((base, int(value)))
            case _:
                return None
    step = math.gcd(multiple, *(count for _, count in whole))
    if places != 1 or constant // step != (constant + factor - 1) // step:
        return None
    result: Expr = Const(constant // step)
    for base, count in whole:
        result = base * (count // step) + result
    return simplify_expr(Binary("//", result, Const(multiple // step)))


def _terms(total: Expr) -> list[Expr]:
    match total:
        case Binary("+", a, b):
            return [*_terms(a), *_terms(b)]
    return [total]
