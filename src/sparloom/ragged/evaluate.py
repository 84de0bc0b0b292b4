"""Values of integer expressions, for numbers and for arrays of coordinates at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparloom.ir import Binary, Const, Expr, Ref
from sparloom.ragged.layout import Step, table_steps
from sparloom.ragged.tables import At, Table

__all__ = ["evaluate", "place"]

TableEntries = Callable[[Table], Any]  # an array, or a number where the table has no axes

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder, "min": np.minimum,
    "max": np.maximum,
}


def evaluate(expr: Expr, values: Mapping[str, Any], entries: TableEntries) -> Any:
    """Evaluate an extent or offset; operands of // and % are at least 0, as extents are.

    Args:
        values: int64 numbers or arrays of one shape by dimension.
        entries: gives a table.

    Raises:
        TypeError: a part is no integer expression.
    """
    match expr:
        case Const(value):
            return np.int64(value)
        case Ref(name):
            return values[name]
        case At(table, args):
            found = entries(table)
            if not table.axes:
                return np.int64(found)
            given = [evaluate(arg, values, entries) for arg in args]
            index = place(table_steps(table.axes), dict(zip((dim.name for dim, _ in table.axes), given, strict=True)),
                          entries)
            return found[index].astype(np.int64)
        case Binary(op, a, b) if op in _OPERATORS:
            return _OPERATORS[op](evaluate(a, values, entries), evaluate(b, values, entries))
    raise TypeError(f"{expr!r} is no integer expression of dimensions")


def place(steps: tuple[Step, ...], values: Mapping[str, Any], entries: TableEntries) -> Any:
    """Add up the steps of an offset."""
    total: Any = np.int64(0)
    for step in steps:
        term = evaluate(step.position, values, entries)
        for factor in step.rest:
            term = term * evaluate(factor, values, entries)
        total = total + term
    return total
