"""Named dimensions, and integer expressions over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparloom.ir import I64, Binary, Const, Expr, Ref, is_name, rebuild, simplify_expr, walk

__all__ = ["Axis", "Dim", "canonical", "checked_axes", "dims", "expanded", "free", "integer", "replaced", "round_up"]

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
