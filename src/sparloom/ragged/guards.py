"""Reads that a condition keeps inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparloom.ir import Binary, Expr, Ref, Select, rebuild
from sparloom.ragged.tensor import Read

__all__ = ["guarded_reads", "guards_of"]


def guarded_reads(value: Expr, guards: Mapping[str, Expr] | None = None) -> Iterator[tuple[Read, Mapping[str, Expr]]]:
    """Yield every read of a value with what it stays below: extents by dimension, of the conditions around it.

    In `where(less(row, lengths(batch)), x[batch, row], real(0.0))` x is read where row is below lengths(batch) only.
    """
    guards = guards or {}
    match value:
        case Read():
            yield value, guards
        case Select(cond, a, b):
            yield from guarded_reads(cond, guards)
            yield from guarded_reads(a, {**guards, **guards_of(cond)})
            yield from guarded_reads(b, guards)
        case _:
            parts: list[Expr] = []
            rebuild(value, expr=lambda part: parts.append(part) or part, body=lambda body: body)
            for part in parts:
                yield from guarded_reads(part, guards)


def guards_of(cond: Expr) -> dict[str, Expr]:
    """Extents that hold where a condition does."""
    match cond:
        case Binary("<", Ref(name), extent):
            return {name: extent}
        case Binary("and", a, b):
            return {**guards_of(a), **guards_of(b)}
    return {}
