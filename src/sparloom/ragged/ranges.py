"""Bounds inference: which coordinates an index takes while inner loops run.

    index        range while f runs from f1 to f2
    outer(f)     outer(f1) .. outer(f2)
    inner(f)     from (o = outer(f1) ? inner(f1) : 0) to (o = outer(f2) ? inner(f2) : l(o) - 1), o the range's own o

Sums, products with constants and the maps above rise, so their ends are those of their parts; differences fall in what
is taken away. Where f runs through the
whole fused loop, the ranges are whole dimensions.

Source: CoRa §5.2, Figure 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparloom.ir import Binary, Const, Expr, Ref, Select, simplify_expr
from sparloom.ragged.dimensions import free, replaced
from sparloom.ragged.tables import At, FusedInner, FusedOuter

__all__ = ["Range", "index_range"]


@dataclass(frozen=True)
class Range:
    """First and last value, both included."""

    first: Expr
    last: Expr


def index_range(index: Expr, extents: Mapping[str, Expr], own: Mapping[FusedOuter, Expr]) -> Range | None:
    """Find the values of an index; None where they are not understood.

    Args:
        index: over loops.
        extents: of the loops that run, over loops; inner ones later.
        own: by map, the name under which the range of its o runs.
    """
    match index:
        case _ if not free(index) & extents.keys():
            return Range(index, index)
        case Ref(name):
            last = index_range(simplify_expr(extents[name] - 1), extents, own)
            return None if last is None else Range(Const(0), last.last)
        case Binary("+", a, b):
            return _joined("+", index_range(a, extents, own), index_range(b, extents, own))
        case Binary("min", a, b):
            return _joined("min", index_range(a, extents, own), index_range(b, extents, own))
        case Binary("*" | "//" as op, a, Const(value) as b) if value > 0:
            return _joined(op, index_range(a, extents, own), Range(b, b))
        case Binary("-", a, b):
            less = index_range(b, extents, own)
            return None if less is None else _joined("-", index_range(a, extents, own), Range(less.last, less.first))
        case At(FusedOuter() | FusedInner() as table, (f,)):
            inside = index_range(f, extents, own)
            return None if inside is None else _mapped(table, inside, own)
    return None


def _joined(op: str, a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return None
    return Range(simplify_expr(Binary(op, a.first, b.first)), simplify_expr(Binary(op, a.last, b.last)))


def _mapped(table: FusedOuter | FusedInner, f: Range, own: Mapping[FusedOuter, Expr]) -> Range | None:
    outers = FusedOuter(table.extent, table.inner, table.multiple)
    inners = FusedInner(table.extent, table.inner, table.multiple)
    whole = f == Range(Const(0), simplify_expr(table.total - 1))
    if isinstance(table, FusedOuter):
        if whole:
            return Range(Const(0), simplify_expr(table.extent - 1))
        return Range(At(outers, (f.first,)), At(outers, (f.last,)))
    if outers not in own:
        return None
    o = own[outers]
    end = simplify_expr(replaced(table.inner, {"x0": o}) - 1)
    if whole:
        return Range(Const(0), end)
    first = Select(Binary("==", o, At(outers, (f.first,))), At(inners, (f.first,)), Const(0))
    return Range(first, Select(Binary("==", o, At(outers, (f.last,))), At(inners, (f.last,)), end))
