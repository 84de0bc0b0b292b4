"""Loops over panels of columns, of which a product of tiles is computed: all of them are one call.

    for p in 0 .. n: c[.. + p w] (rows, min(w, e - p w)) = a b[.. + p s]

The left operand is the same for all panels, so the routine for products can copy it once into the order in which it
is read. Names that are defined in the loop may stand between: q = p // 4, r = p % 4, c[.. + 64 q + 16 r].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparloom.ir.nodes import I64, Binary, Const, Expr, For, Let, Multiply, Ref, View
from sparloom.ir.simplify import simplify_expr
from sparloom.ir.traverse import Body, rebuild, replace_refs, walk

__all__ = ["Panels", "panels_of"]

ZERO, ONE = Const(0), Const(1)


@dataclass(frozen=True)
class Panels:
    """A product of tiles for each panel.

    Args:
        first: that of the first panel, as wide as all but the last.
        count: of panels; may be 0.
        last: columns of the last one.
        b_step, c_step: elements from one panel to the next.
    """

    first: Multiply
    count: Expr
    last: Expr
    b_step: Expr
    c_step: Expr


def panels_of(loop: For) -> Panels | None:
    """Recognise such a loop."""
    if loop.kind != "serial" or loop.lo != ZERO or loop.step != 1 or not loop.body:
        return None
    *defined, product = loop.body
    if not isinstance(product, Multiply) or not all(isinstance(each, Let) for each in defined):
        return None
    product, var = _inlined(product, defined), loop.var
    same = (product.a, product.rows, product.depth, product.add, product.b.row, product.c.row, product.c.col)
    b_at, c_at = _line(product.b.at, var), _line(product.c.at, var)
    if any(_reads(expr, var) for expr in same) or b_at is None or c_at is None:
        return None
    widths = _widths(product.cols, var, loop.hi)
    if widths is None:
        return None
    first = replace(product, b=replace(product.b, at=b_at[0]), c=replace(product.c, at=c_at[0]), cols=widths[0])
    return Panels(first, loop.hi, widths[1], b_at[1], c_at[1])


def _inlined(product: Multiply, defined: Sequence[Let]) -> Multiply:
    """Put what names stand for in their place."""
    body: Body = (product,)
    for each in reversed(defined):
        body = replace_refs(body, {each.name: each.value})
    inlined = body[0]
    assert isinstance(inlined, Multiply)
    return replace(inlined, a=_joined_view(inlined.a), b=_joined_view(inlined.b), c=_joined_view(inlined.c))


def _joined_view(view: View) -> View:
    return rebuild(view, expr=_joined, body=lambda inner: inner)


def _joined(expr: Expr) -> Expr:
    """Write n (e // n) + e % n as e, and as simple as it gets, wherever it stands in a sum."""
    terms = _terms(expr, 1)
    found = True
    while found:
        found = False
        for rest in list(terms):
            match rest:
                case Binary("%", whole, Const(count)) if terms.get(whole // int(count)) == terms[rest] * int(count):
                    del terms[whole // int(count)]
                    _add(terms, _terms(whole, terms.pop(rest)))
                    found = True
                    break
    total: Expr = ZERO
    for term, count in terms.items():
        total = total + term * count
    return simplify_expr(total)


def _terms(expr: Expr, times: int) -> dict[Expr, int]:
    """Write a sum as terms and how often each is added."""
    match expr:
        case Const(value, type) if type == I64:
            return {ONE: int(value) * times} if value else {}
        case Binary("+" | "-" as op, a, b):
            return _add(_terms(a, times), _terms(b, times if op == "+" else -times))
        case Binary("*", a, Const(count)) | Binary("*", Const(count), a):
            return _terms(a, times * int(count))
    return {expr: times}


def _add(terms: dict[Expr, int], more: Mapping[Expr, int]) -> dict[Expr, int]:
    for term, count in more.items():
        terms[term] = terms.get(term, 0) + count
        if not terms[term]:
            del terms[term]
    return terms


def _widths(cols: Expr, var: str, count: Expr) -> tuple[Expr, Expr] | None:
    """Columns of a whole panel and of the last one."""
    if not _reads(cols, var):
        return cols, cols
    match cols:
        case Binary("min", width, rest) | Binary("min", rest, width) if not _reads(width, var):
            line = _line(rest, var)
            if line is not None and simplify_expr(line[1] + width) == ZERO:
                return width, simplify_expr(Binary("min", width, line[0] - (count - 1) * width))
    return None


def _line(expr: Expr, var: str) -> tuple[Expr, Expr] | None:
    """Write an expression as base + var * step."""
    if not _reads(expr, var):
        return expr, ZERO
    match expr:
        case Ref(name) if name == var:
            return ZERO, ONE
        case Binary("+" | "-" as op, a, b):
            first, second = _line(a, var), _line(b, var)
            if first is not None and second is not None:
                base, step = (simplify_expr(Binary(op, *pair)) for pair in zip(first, second, strict=True))
                return base, step
        case Binary("*", a, b):
            factor, other = (b, _line(a, var)) if not _reads(b, var) else (a, _line(b, var))
            if not _reads(factor, var) and other is not None:
                base, step = (simplify_expr(part * factor) for part in other)
                return base, step
    return None


def _reads(expr: Expr, var: str) -> bool:
    return any(isinstance(node, Ref) and node.name == var for node in walk(expr))
