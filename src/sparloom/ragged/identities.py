"""What is known of the maps of a fused loop f over o and i(o).

    starts(outer(f)) + inner(f)  ->  f          outer(starts(o) + i)  ->  o          inner(starts(o) + i)  ->  i

Source: CoRa §5.1 and §5.2. With the first, a tensor stored as the fused loop runs is accessed at f alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparloom.ir import Binary, Const, Expr, Ref
from sparloom.ragged.tables import At, FusedInner, FusedOuter, Offsets

__all__ = ["simplify_map", "sum_of_positions"]


def sum_of_positions(positions: Sequence[Expr], defined: Mapping[str, Expr]) -> Expr:
    """Add up, with the first identity; `defined` says which names are entries of maps."""
    left = list(positions)
    for start in positions:
        for inner in positions:
            fused = _fused(start, inner, defined)
            if fused is not None and start in left and inner in left:
                left.remove(start)
                left[left.index(inner)] = fused
    total: Expr = Const(0)
    for position in left:
        total = position if total == Const(0) else total + position
    return total


def simplify_map(expr: Expr) -> Expr:
    """Apply the second and third identity to an entry of a map."""
    match expr:
        case At(FusedOuter() | FusedInner() as table, (Binary("+", At(Offsets() as starts, (o,)), i),)) if (
                starts == table.starts):
            return o if isinstance(table, FusedOuter) else i
    return expr


def _fused(start: Expr, inner: Expr, defined: Mapping[str, Expr]) -> Expr | None:
    """The f of starts(outer(f)) and inner(f)."""
    if not isinstance(start, At) or not isinstance(start.table, Offsets) or len(start.args) != 1:
        return None
    match _meaning(start.args[0], defined), _meaning(inner, defined):
        case At(FusedOuter() as outers, (f,)), At(FusedInner() as inners, (g,)):
            same = f == g and outers.starts == inners.starts == start.table and outers.multiple == inners.multiple
            return f if same else None
    return None


def _meaning(expr: Expr, defined: Mapping[str, Expr]) -> Expr:
    while isinstance(expr, Ref) and expr.name in defined:
        expr = defined[expr.name]
    return expr
