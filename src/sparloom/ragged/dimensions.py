"""Named dimensions, and arithmetic on integer expressions over them.

Expressions are compared as sums of products (`Polynomial`), and extents that are equal for all iterations of a tile
are written without the loop inside the tile (`without_inner`):

    row_outer * 64 + row_inner - row_outer * 64  ->  row_inner
    (outer * m + inner + c) // m                 ->  outer + c // m            if 0 <= inner < factor, and the tile does
    (outer * m + inner + c) // (k m)             ->  (outer + c // m) // k     not cross a multiple of m

A vloop whose extent is rounded to the tile may therefore stand outside the loop inside the tile: with row =
row_outer * 8 + row_inner, `for k in 0 .. row // 8 * 8` becomes `for k in 0 .. row_outer * 8`.

Source: CoRa §5.2 (simplification of extents), §7.1 (trmm).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from sparloom.ir import I64, Binary, Const, Expr, Ref, is_name, rebuild, simplify_expr, walk

Dim = Ref
"""Name of a loop, and of the tensor dimensions along which it runs."""
Axis = tuple[Dim, Expr]
Factors = tuple[Expr, ...]  # sorted; none is a sum, a product or a constant
NAME_RULE = "use letters, digits and single underscores after a letter, and no C keyword"


def dims(names: str) -> tuple[Dim, ...]:
    """Make named dimensions from space-separated names."""
    for name in names.split():
        if not is_name(name):
            raise ValueError(f"dimension {name!r} is not a valid name: {NAME_RULE}")
    return tuple(Ref(name) for name in names.split())


def as_index(value: Expr | int) -> Expr:
    """Convert an int to an i64 constant."""
    return Const(value, I64) if isinstance(value, int) else value


def checked_axes(owner: str, axes: Mapping[Dim, Expr | int] | Iterable[tuple[Dim, Expr | int]]) -> tuple[Axis, ...]:
    """Check that every extent reads only earlier axes; ints become constants.

    Raises:
        ValueError: an extent reads a later axis, an extent is negative, or a dimension occurs twice.
    """
    found: dict[str, Axis] = {}
    for dim, extent in axes.items() if isinstance(axes, Mapping) else axes:
        expr = simplify_expr(as_index(extent))
        late = sorted(free_names(expr) - set(found))
        if late:
            raise ValueError(f"{owner}: the extent of {dim.name} depends on {late[0]}, which does not come before it: "
                             f"put {late[0]} first")
        if isinstance(expr, Const) and expr.value < 0:
            raise ValueError(f"{owner}: the extent of {dim.name} is {expr.value}: extents are at least 0")
        if dim.name in found:
            raise ValueError(f"{owner}: dimension {dim.name} occurs twice: make a second name with dims()")
        found[dim.name] = (dim, expr)
    return tuple(found.values())


def free_names(expr: Expr) -> set[str]:
    """Return the names of the dimensions and variables that an expression reads."""
    return {node.name for node in walk(expr) if isinstance(node, Ref)}


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace names by expressions, all at once."""
    if isinstance(expr, Ref):
        return values.get(expr.name, expr)
    return rebuild(expr, expr=lambda inner: substitute(inner, values))


def expand(expr: Expr, defined: Mapping[str, Expr]) -> Expr:
    """Replace names by their definitions until no defined name is left."""
    while free_names(expr) & defined.keys():
        expr = substitute(expr, defined)
    return expr


def canonical_names(chosen: Iterable[Dim]) -> dict[str, Expr]:
    """Map dimensions to x0, x1, ... in order."""
    return {dim.name: Ref(f"x{number}") for number, dim in enumerate(chosen)}


def round_up(expr: Expr, multiple: int) -> Expr:
    """Round an expression up to a multiple of `multiple`."""
    if multiple == 1:
        return expr
    return simplify_expr(Binary("//", expr + (multiple - 1), Const(multiple)) * multiple)


def is_multiple(extent: Expr, factor: int) -> bool:
    """Check whether an extent is provably a multiple of `factor`."""
    match extent:
        case Const(value):
            return value % factor == 0
        case Binary("*", a, b):
            return is_multiple(a, factor) or is_multiple(b, factor)
        case Binary("+" | "-" | "min" | "max", a, b):
            return is_multiple(a, factor) and is_multiple(b, factor)
    return factor == 1


class Polynomial:
    """Sum of products with integer coefficients."""

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

    def cancel_divisions(self) -> Polynomial:
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
                            return Polynomial(terms).cancel_divisions()
        return self

    def expr(self) -> Expr:
        """Convert back to an expression."""
        total: Expr | None = None
        for factors, count in sorted(self.terms.items(), key=lambda term: (len(term[0]) == 0, term[1] < 0)):
            term = _product(factors, abs(count))
            if total is None:
                total = term if count > 0 else Const(0) - term
            else:
                total = total + term if count > 0 else total - term
        return simplify_expr(total or Const(0))

    def strides(self, names: Collection[str]) -> tuple[Expr, dict[str, Expr]] | None:
        """Write as base + sum of name * stride; None if the sum has another form.

        Args:
            names: names that must not occur in base or strides.
        """
        base: dict[Factors, int] = {}
        strides: dict[str, dict[Factors, int]] = {name: {} for name in names}
        for factors, count in self.terms.items():
            inside = [factor for factor in factors if free_names(factor) & strides.keys()]
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
    """Subtract and cancel equal terms."""
    return (Polynomial.of(a - b)).expr()


def min_of_sums(expr: Expr) -> Expr:
    """Move minima outwards, without duplicates: o * 64 + min(64, n - o * 64)  ->  min(o * 64 + 64, n)."""
    if not any(isinstance(node, Binary) and node.op == "min" for node in walk(expr)):
        return expr
    *first, last = sorted({polynomial.expr() for polynomial in _min_terms(expr)}, key=repr)
    total = last
    for each in reversed(first):
        total = Binary("min", each, total)
    return total


def _min_terms(expr: Expr) -> list[Polynomial]:
    """Return the sums whose minimum the expression is, terms sorted: equal sums are equal text in every process."""
    match expr:
        case Binary("min", a, b):
            return [*_min_terms(a), *_min_terms(b)]
        case Binary("+" | "-" as op, a, b):
            rights = _min_terms(b) if op == "+" else [Polynomial.of(b)]
            return [_sorted(Polynomial.of(Binary(op, left.expr(), right.expr())))
                    for left in _min_terms(a) for right in rights]
    return [_sorted(Polynomial.of(expr))]


def _sorted(polynomial: Polynomial) -> Polynomial:
    return Polynomial(dict(sorted(polynomial.terms.items(), key=repr)))


def quotient(expr: Expr, factor: int, limits: Mapping[str, int]) -> tuple[Expr, Expr] | None:
    """Find q and r with expr = q * factor + r and 0 <= r < factor; None if no such pair can be proved.

    Args:
        limits: constants that loop variables stay below.
    """
    whole: dict[Factors, int] = {}
    rest: dict[Factors, int] = {}
    largest = 0  # value that the remainder can take
    for factors, count in Polynomial.of(expr).terms.items():
        if count % factor == 0:
            whole[factors] = count // factor
            continue
        rest[factors] = count
        match factors:
            case () if count >= 0:
                largest += count
            case (Ref(name),) if name in limits and count > 0:
                largest += count * (limits[name] - 1)
            case _:
                return None
    return (Polynomial(whole).expr(), Polynomial(rest).expr()) if largest < factor else None


def _product(factors: Factors, count: int) -> Expr:
    if not factors:
        return Const(count)
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total * count if count != 1 else total


def without_inner(expr: Expr, inner: str, factor: int) -> Expr:
    """Simplify divisions by the rules of the module docstring.

    Args:
        inner: name of a variable in 0 .. factor.
    """
    expr = simplify_expr(rebuild(expr, expr=lambda part: without_inner(part, inner, factor)))
    match expr:
        case Binary("//", total, Const(multiple)):
            return _quotient(total, int(multiple), inner=inner, factor=factor) or expr
    return expr


def constant_bound(extent: Expr) -> int | None:
    """Return a constant upper bound of an extent if one is obvious."""
    match extent:
        case Const(value):
            return int(value)
        case Binary("min", a, b):
            known = [limit for limit in (constant_bound(a), constant_bound(b)) if limit is not None]
            return min(known, default=None)
    return None


def _quotient(total: Expr, multiple: int, *, inner: str, factor: int) -> Expr | None:
    whole: list[tuple[Expr, int]] = []
    constant = occurrences = 0
    for term in _terms(total):
        match term:
            case Const(value):
                constant += int(value)
            case Ref(name) if name == inner:
                occurrences += 1
            case Binary("*", base, Const(value)):
                whole.append((base, int(value)))
            case _:
                return None
    step = math.gcd(multiple, *(count for _, count in whole))
    if occurrences != 1 or constant // step != (constant + factor - 1) // step:
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
