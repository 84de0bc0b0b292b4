"""Whether every access of a nest stays inside its tensor, also where loops are padded.

An index stays inside when its largest value can be shown to lie below the extent that the tensor has there: the two
are equal expressions, constants that compare, or become so when dimensions are put at their largest values and length
functions at their limits. Where loops are padded, storage must be padded to a multiple of what they are padded to:
only then ceil(length, loop) <= ceil(length, storage) for every length. What is read under a condition
`dimension < extent` is bounded by that extent instead, so a change of padding can be a part of another operation.

Source: CoRa §4.1 (storage padding at least loop padding). Departure: the prototype does not check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, pretty_expr, simplify_expr, walk
from sparloom.ragged.dimensions import Dim, free, replaced
from sparloom.ragged.guards import guarded_reads
from sparloom.ragged.program import Nest
from sparloom.ragged.show import printable
from sparloom.ragged.tables import At, Length, asked_for
from sparloom.ragged.tensor import Read

__all__ = ["check_accesses"]


@dataclass(frozen=True)
class _Limit:
    """What a value stays below: `extent` rounded up to each of `multiples`, one after the other in some order."""

    extent: Expr
    multiples: frozenset[int] = frozenset()


def check_accesses(nest: Nest) -> None:
    """Check all accesses of a nest, not those of nests attached to it.

    Raises:
        IllegalSchedule: names tensor, dimension, what cannot be shown, and the remedy.
    """
    reads = [(nest.operation.written, {}), *guarded_reads(nest.operation.value)]
    for name, _ in nest.padded:
        _check_lengths(nest, [read for read, guards in reads if name not in guards], name)
    for read, guards in reads:
        values = {dim.name: index for (dim, _), index in zip(read.tensor.axes, read.indices, strict=True)}
        for (dim, extent), index in zip(read.tensor.axes, read.indices, strict=True):
            _check(nest, read, dim, index=index, extent=simplify_expr(replaced(extent, values)), guards=guards)
        for outer, inner, multiple in nest.bulk:
            _check_bulk(nest, read, (outer, inner), multiple)
    for node in walk(nest.operation.value):
        asked = isinstance(node, At) and free(node) & {name for *pair, _ in nest.bulk for name in pair}
        if asked:
            raise IllegalSchedule(f"{nest.name} reads {_text(node)}, which is not defined in bulk padding: fuse "
                                  "without")


def _check_lengths(nest: Nest, reads: list[Read], padded: str) -> None:
    """No length function is asked for a dimension beyond its end."""
    exprs = [(extent, padded) for _, extent in nest.axes] + [(nest.operation.value, padded)]
    for read in reads:
        for (dim, _), index in zip(read.tensor.axes, read.indices, strict=True):
            if padded in free(index):
                exprs += [(extent, dim.name) for _, extent in read.tensor.axes]
    for expr, name in exprs:
        asked = asked_for(expr, name)
        if asked is not None:
            raise IllegalSchedule(f"{nest.name}: loop {padded} cannot be padded, since length function {asked.name} "
                                  f"has no entry beyond its end: fuse it with the loop inside and pad that (bulk "
                                  "padding)")


def _check_bulk(nest: Nest, read: Read, pair: tuple[str, str], multiple: int) -> None:
    """Let a tensor be read in the padding of a fused loop only where it has storage for it."""
    tensor, indices = read.tensor, read.indices
    extents = dict(_extents(nest))
    place = 0
    while place < len(indices):
        if not free(indices[place]) & set(pair):
            place += 1
            continue
        names = tuple(index.name for index in indices[place : place + 2] if isinstance(index, Ref))
        dim = tensor.axes[min(place + 1, len(indices) - 1)][0]
        plain = tensor.axes[place][0] not in (*dict(tensor.padding), *tensor.full) and dim not in (
            *dict(tensor.padding), *tensor.full)
        values = {each.name: index for (each, _), index in zip(tensor.axes, indices, strict=True)}
        alike = names == pair and replaced(dict(tensor.axes)[dim], values) == extents[pair[1]]
        if not (plain and alike and dict(tensor.bulk).get(dim, 1) % multiple == 0):
            raise IllegalSchedule(
                f"{nest.name} accesses {tensor.name} at {_text(indices[place])} in a fused loop padded to multiples of "
                f"{multiple}: {tensor.name} must store {pair[0]} and {pair[1]} next to each other, unpadded but for "
                f"bulk padding of {dim.name} to a multiple of {multiple}: pad_storage(bulk=...) first")
        place += 2


def _check(nest: Nest, read: Read, dim: Dim, *, index: Expr, extent: Expr, guards: Mapping[str, Expr]) -> None:
    if isinstance(extent, Binary) and extent.op == "min":
        for part in (extent.a, extent.b):
            _check(nest, read, dim, index=index, extent=part, guards=guards)
        return
    tensor = read.tensor
    stored = dict(tensor.padding).get(dim, 1)
    place = f"{nest.name} accesses {tensor.name}, dimension {dim.name}, at {_text(index)}"
    if not _at_least_zero(index):
        raise IllegalSchedule(f"{place}, which cannot be shown to be at least 0: read it by a dimension of its own, or "
                              f"guard another index by where()")
    wrong: list[int] = []
    for limit in (_limit(index, nest, guards), _limit(index, nest, {})):
        while limit is not None:
            if _fits(limit.extent, extent):
                wrong = [multiple for multiple in sorted(limit.multiples) if stored % multiple
                         and not _constant_fits(limit, extent, stored)]
                if not wrong:
                    return
                break
            limit = _wider(limit, nest, keep=free(extent))
    if wrong:
        raise IllegalSchedule(f"{place}, whose loops are padded to multiples of {wrong[-1]}, but its storage is padded "
                              f"to multiples of {stored}: pad the storage to a multiple of {wrong[-1]} first")
    raise IllegalSchedule(f"{place}, which cannot be shown to stay below {_text(extent)}: read it by a dimension of "
                          f"that extent, or give the length function a limit")


def _fits(below: Expr, extent: Expr) -> bool:
    if isinstance(below, Binary) and below.op == "min" and below != extent:
        return _fits(below.a, extent) or _fits(below.b, extent)
    match extent:
        case Binary("*", Binary("+", Binary("//", base, Const(block)), Const(1)), Const(size)) if block == size:
            if below in (base, simplify_expr(base + 1)):  # x < (x // m + 1) * m
                return True
    if isinstance(below, Const):
        least = _least(extent)
        return least is not None and below.value <= least
    return below == extent


def _least(extent: Expr) -> int | None:
    """A number that an extent does not fall below; dimensions and lengths are at least 0."""
    match extent:
        case Const(value):
            return int(value)
        case Ref() | At():
            return 0
        case Binary("+", a, b):
            parts = (_least(a), _least(b))
            return None if None in parts else sum(parts)
    return None


def _constant_fits(limit: _Limit, extent: Expr, stored: int) -> bool:
    """Whether constants fit though the multiples do not divide each other."""
    if not isinstance(limit.extent, Const) or not isinstance(extent, Const):
        return False
    top = limit.extent.value
    for multiple in sorted(limit.multiples):
        top = -(-top // multiple) * multiple
    return len(limit.multiples) == 1 and top <= -(-extent.value // stored) * stored


def _limit(index: Expr, nest: Nest, guards: Mapping[str, Expr]) -> _Limit | None:
    """Bound an index by the extents of the dimensions that it reads, or by the conditions around it."""
    extents, padded = dict(_extents(nest)), dict(nest.padded)
    match index:
        case Const(value):
            return _Limit(Const(value + 1))
        case Ref(name) if name in guards:
            return _Limit(guards[name])
        case Ref(name) if name in extents:
            return _Limit(extents[name], frozenset({padded[name]} if name in padded else ()))
        case Binary("+", a, Const(value)) if value >= 0:
            inner = _limit(a, nest, guards)
            return None if inner is None or inner.multiples else _Limit(simplify_expr(inner.extent + value))
    return None


def _wider(limit: _Limit, nest: Nest, *, keep: set[str]) -> _Limit | None:
    """Put a dimension that the extent reads at its largest value, or a length function at its limit."""
    extents, padded = dict(_extents(nest)), dict(nest.padded)
    extent = limit.extent
    for name in reversed(extents):
        if name in free(extent) - keep and _rises(extent, name):
            top = simplify_expr(replaced(extent, {name: extents[name] - 1}))
            if name in padded and top != extents[name]:
                return None
            return _Limit(top, limit.multiples | ({padded[name]} if name in padded else set()))
    if isinstance(extent, At) and isinstance(extent.table, Length) and extent.table.limit is not None:
        return _Limit(extent.table.limit, limit.multiples)
    return None


def _rises(extent: Expr, name: str) -> bool:
    """Whether an extent is known not to fall when a dimension grows."""
    match extent:
        case Ref():
            return True
        case Binary("+" | "min" | "max", a, b):
            return all(name not in free(each) or _rises(each, name) for each in (a, b))
        case Binary("*" | "//", a, Const(value)) if value > 0:
            return _rises(a, name)
        case Binary("-", a, Const()):
            return _rises(a, name)
    return False


def _at_least_zero(index: Expr) -> bool:
    if any(isinstance(node, Binary) and node.op in ("-", "%") for node in walk(index)):
        return False
    return not any(isinstance(node, Const) and node.value < 0 for node in walk(index))


def _extents(nest: Nest) -> list[tuple[str, Expr]]:
    return [(dim.name, extent) for dim, extent in nest.axes]


def _text(expr: Expr) -> str:
    return pretty_expr(printable(expr))
