"""Define programs from operations, and check that every access stays in bounds.

An index is in bounds if its upper bound can be proved to be at most the extent of the tensor: the two are equal
expressions or comparable constants, perhaps after dimensions are replaced by their largest values and length functions
by their limits. If loops are padded, storage must be padded to a multiple of the same number: only then is
ceil(length, loop) <= ceil(length, storage) for every length. A read under a condition `dimension < extent` is bounded
by that extent instead, so another operation may contain a change of padding; one under the opposite condition may
subtract that extent, so that a dimension may be read from its middle on, or a distance between two positions; a sum
a + b is below n under the condition b < n - a. Where a dimension is as long as n, rounded up, min(dimension, n - 1)
repeats the last element.

Source: CoRa §4.1 (storage padding at least loop padding). Departure: the prototype does not check.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, Select, is_name, rebuild, simplify_expr, walk
from sparloom.ragged.dimensions import NAME_RULE, Dim, as_index, free_names, round_up, substitute
from sparloom.ragged.nests import Launch, Nest, Operation, Program, text
from sparloom.ragged.tensor import At, Length, Read, Tensor, length_indexed_by


def part(name: str, tensor: Tensor, at: Mapping[Dim, int], value: Expr) -> Operation:
    """Define the elements at constant coordinates: `for i: t[0, i] = f(i)` besides `for i: t[1, i] = g(i)`.

    `part("d_key", d_qkv, {which: 1}, ..)` is a nest named d_key without a loop over `which`. All parts of a tensor fix
    the same dimensions, and together define the whole tensor.
    """
    extents = dict(tensor.axes)
    for dim, coordinate in at.items():
        extent = extents.get(dim)
        if not isinstance(extent, Const) or not 0 <= coordinate < extent.value:
            there = ", ".join(f"{each.name}: {found.value}" for each, found in tensor.axes if isinstance(found, Const))
            raise IllegalSchedule(f"part {name} of {tensor.name} at {dim.name} = {coordinate}: use a coordinate of a "
                                  f"dimension of constant extent: {there or 'none'}")
    return Operation(tensor, value, tuple((dim, as_index(number)) for dim, number in at.items()), name)


def check_parts(program: str, operations: Sequence[Operation]) -> None:
    """Check that every tensor is defined exactly once, completely."""
    names = [each.nest for each in operations]
    outputs = {each.name for each in operations if each.at}
    if not names or len(set(names)) < len(names) or outputs & set(names):
        raise IllegalSchedule(f"program {program} defines {', '.join(names) or 'nothing'}: define every tensor once")
    for name in outputs:
        own = [each for each in operations if each.name == name]
        dims = [dim for dim, _ in own[0].at]
        extents = dict(own[0].output.axes)
        wanted = set(itertools.product(*(range(extents[dim].value) for dim in dims)))
        found = [tuple(number.value for _, number in each.at) for each in own if [dim for dim, _ in each.at] == dims]
        if len(found) < len(own) or len(set(found)) < len(found) or set(found) != wanted:
            raise IllegalSchedule(f"program {program} defines {name} in parts {', '.join(each.nest for each in own)}: "
                                  f"they must fix the same dimensions, and have every coordinate once")


@dataclass(frozen=True)
class Guards:
    """What surrounding conditions imply for dimensions, by name.

    Args:
        below: they are less than this.
        least: they are at least this.
    """

    below: Mapping[str, Expr] = field(default_factory=dict)
    least: Mapping[str, Expr] = field(default_factory=dict)

    def where(self, cond: Expr) -> Guards:
        """Add what a condition implies."""
        match cond:
            case Binary("<", Ref(name), extent):
                return replace(self, below={**self.below, name: extent})
            case Binary("and", a, b):
                return self.where(a).where(b)
        return self

    def unless(self, cond: Expr) -> Guards:
        """Add what the opposite of a condition implies."""
        match cond:
            case Binary("<", Ref(name), extent):
                return replace(self, least={**self.least, name: extent})
        return self


def guarded_reads(value: Expr, guards: Guards | None = None) -> Iterator[tuple[Read, Guards]]:
    """Yield every read of a value with what surrounding conditions imply.

    In `where(less(row, lengths(batch)), x[batch, row], real(0.0))` x is read only where row is below lengths(batch).
    """
    guards = guards or Guards()
    match value:
        case Read():
            yield value, guards
        case Select(cond, a, b):
            yield from guarded_reads(cond, guards)
            yield from guarded_reads(a, guards.where(cond))
            yield from guarded_reads(b, guards.unless(cond))
        case _:
            parts: list[Expr] = []
            rebuild(value, expr=lambda part: parts.append(part) or part)
            for part in parts:
                yield from guarded_reads(part, guards)


@dataclass(frozen=True)
class _UpperBound:
    """Exclusive upper bound: `extent` rounded up to each of `multiples`, in some order."""

    extent: Expr
    multiples: frozenset[int] = frozenset()


def check_accesses(nest: Nest) -> None:
    """Check all accesses of a nest, without those of attached nests."""
    reads = [(nest.operation.written, Guards()), *guarded_reads(nest.operation.value)]
    for name, _ in nest.padded:
        _check_lengths(nest, [read for read, guards in reads if name not in guards.below], name)
    for read, guards in reads:
        values = {dim.name: index for (dim, _), index in zip(read.tensor.axes, read.indices, strict=True)}
        for (dim, extent), index in zip(read.tensor.axes, read.indices, strict=True):
            _check(nest, read, dim, index=index, extent=simplify_expr(substitute(extent, values)), guards=guards)


def _check_lengths(nest: Nest, reads: list[Read], padded: str) -> None:
    """Check that no length function is read at a dimension beyond its end."""
    exprs = [(extent, padded) for _, extent in nest.axes] + [(nest.operation.value, padded)]
    for read in reads:
        for (dim, _), index in zip(read.tensor.axes, read.indices, strict=True):
            if padded in free_names(index):
                exprs += [(extent, dim.name) for _, extent in read.tensor.axes]
    for expr, name in exprs:
        length = length_indexed_by(expr, name)
        if length is not None:
            raise IllegalSchedule(f"{nest.name}: loop {padded} cannot be padded, since length function {length.name} "
                                  "has no entry beyond its end: pad another loop")


def _check(nest: Nest, read: Read, dim: Dim, *, index: Expr, extent: Expr, guards: Guards) -> None:
    if isinstance(extent, Binary) and extent.op == "min":
        for part in (extent.a, extent.b):
            _check(nest, read, dim, index=index, extent=part, guards=guards)
        return
    tensor = read.tensor
    stored = dict(tensor.padding).get(dim, 1)
    access = f"{nest.name} accesses {tensor.name}, dimension {dim.name}, at {text(index)}"
    if _last_element(index, nest) is None and not _is_nonnegative(index, guards):
        raise IllegalSchedule(f"{access}, which cannot be shown to be at least 0: read it by a separate dimension, "
                              "or guard another index by where()")
    wrong: list[int] = []
    for limit in (_upper_bound(index, nest, guards), _upper_bound(index, nest, Guards()), _bound_of_difference(index)):
        while limit is not None:
            if _fits(limit.extent, extent):
                wrong = [multiple for multiple in sorted(limit.multiples) if stored % multiple]
                if not wrong:
                    return
                break
            limit = _relax(limit, nest, keep=free_names(extent))
    if wrong:
        raise IllegalSchedule(f"{access}, whose loops are padded to multiples of {wrong[-1]}, but its storage is "
                              f"padded to multiples of {stored}: pad the storage to a multiple of {wrong[-1]} first")
    raise IllegalSchedule(f"{access}, which cannot be shown to stay below {text(extent)}: read it by a dimension of "
                          f"that extent, or give the length function a limit")


def _fits(below: Expr, extent: Expr) -> bool:
    if isinstance(below, Binary) and below.op == "min" and below != extent:
        return _fits(below.a, extent) or _fits(below.b, extent)
    match extent:
        case Binary("*", Binary("+", Binary("//", base, Const(block)), Const(1)), Const(size)) if block == size:
            if below in (base, simplify_expr(base + 1)):  # x < (x // m + 1) * m
                return True
    if _is_rounded_up(extent, below):
        return True
    if isinstance(below, Const):
        lowest = _lower_bound(extent)
        return lowest is not None and below.value <= lowest
    return below == extent


def _is_rounded_up(extent: Expr, count: Expr) -> bool:
    match extent:
        case Binary("*", Binary("//"), Const(multiple)):
            return extent == round_up(count, multiple)
    return False


def _last_element(index: Expr, nest: Nest) -> Expr | None:
    """Return n if an index repeats the last one of n elements beyond them: min(x, n - 1) for x below n, rounded up.

    Where there is an x, n is at least 1.
    """
    match index:
        case Binary("min", Ref(name), Binary("-", count, Const(1))):
            return count if _is_below_rounded(dict(_extents(nest)).get(name), count) else None
    return None


def _is_below_rounded(extent: Expr | None, count: Expr) -> bool:
    """Check whether an extent is at most a count that `round_up` has rounded."""
    match extent:
        case Binary("min", a, b):
            return _is_below_rounded(a, count) or _is_below_rounded(b, count)
    return extent is not None and _is_rounded_up(extent, count)


def _lower_bound(extent: Expr) -> int | None:
    """Return a constant lower bound of an extent; dimensions and lengths are at least 0."""
    match extent:
        case Const(value):
            return int(value)
        case Ref() | At():
            return 0
        case Binary("+", a, b):
            parts = (_lower_bound(a), _lower_bound(b))
            return None if None in parts else sum(parts)
    return None


def _upper_bound(index: Expr, nest: Nest, guards: Guards) -> _UpperBound | None:
    """Bound an index by the extents of the dimensions that it reads, or by surrounding conditions."""
    extents, padded, last = dict(_extents(nest)), dict(nest.padded), _last_element(index, nest)
    if last is not None:
        return _UpperBound(last)
    match index:
        case Const(value):
            return _UpperBound(Const(value + 1))
        case Ref(name) if name in guards.below:
            return _UpperBound(guards.below[name])
        case Ref(name) if name in extents:
            return _UpperBound(extents[name], frozenset({padded[name]} if name in padded else ()))
        case Binary("+", a, Const(value)) if value >= 0:
            inner = _upper_bound(a, nest, guards)
            return None if inner is None or inner.multiples else _UpperBound(simplify_expr(inner.extent + value))
        case Binary("-", a, Const(value)) if value >= 0:
            inner = _upper_bound(a, nest, guards)
            return None if inner is None or inner.multiples else _UpperBound(simplify_expr(inner.extent - value))
        case Binary("//", a, Const(value)) if value > 0:
            inner = _upper_bound(a, nest, guards)
            if inner is not None and not inner.multiples and isinstance(inner.extent, Const):
                return _UpperBound(Const(-(-inner.extent.value // value)))
        case Binary("+", a, Ref(name)) if _is_below_difference(guards.below.get(name), a):
            return _UpperBound(guards.below[name].a)
        case Binary("-", a, Ref()):
            return _upper_bound(a, nest, guards)
        case Binary("min", _, Const(value)):
            return _UpperBound(Const(value + 1))
    return None


def _bound_of_difference(index: Expr) -> _UpperBound | None:
    """Bound x - y by x itself."""
    match index:
        case Binary("-", Ref(name), Ref()):
            return _UpperBound(_next(name))
    return None


def _is_below_difference(limit: Expr | None, subtracted: Expr) -> bool:
    return isinstance(limit, Binary) and limit.op == "-" and limit.b == subtracted


def _relax(limit: _UpperBound, nest: Nest, *, keep: set[str]) -> _UpperBound | None:
    """Replace a dimension that the bound reads by its largest value, or a length function by its limit."""
    extents, padded = dict(_extents(nest)), dict(nest.padded)
    extent = limit.extent
    for name in reversed(extents):
        if name in free_names(extent) - keep and _is_nondecreasing(extent, name):
            top = simplify_expr(substitute(extent, {name: extents[name] - 1}))
            if name in padded and top != extents[name]:
                return None
            return _UpperBound(top, limit.multiples | ({padded[name]} if name in padded else set()))
    if isinstance(extent, At) and isinstance(extent.table, Length) and extent.table.limit is not None:
        return _UpperBound(extent.table.limit, limit.multiples)
    return None


def _is_nondecreasing(extent: Expr, name: str) -> bool:
    """Check whether an extent provably does not decrease when a dimension grows."""
    match extent:
        case Ref():
            return True
        case Binary("+" | "min" | "max", a, b):
            return all(name not in free_names(each) or _is_nondecreasing(each, name) for each in (a, b))
        case Binary("*" | "//", a, Const(value)) if value > 0:
            return _is_nondecreasing(a, name)
        case Binary("-", a, Const()):
            return _is_nondecreasing(a, name)
    return False


def _is_nonnegative(index: Expr, guards: Guards) -> bool:
    match index:
        case Binary("-", Ref(name), Const(value)) if name in guards.least:
            lowest = _lower_bound(guards.least[name])
            return lowest is not None and lowest >= value
        case Binary("-", Ref(name), Ref() as other):
            return guards.below.get(other.name) == _next(name) or guards.least.get(name) == _next(other.name)
        case Binary("min", a, Const(value)) if value >= 0:
            return _is_nonnegative(a, guards)
    if any(isinstance(node, Binary) and node.op in ("-", "%") for node in walk(index)):
        return False
    return not any(isinstance(node, Const) and node.value < 0 for node in walk(index))


def _next(name: str) -> Expr:
    """Return the number after a dimension."""
    return simplify_expr(Ref(name) + 1)


def _extents(nest: Nest) -> list[tuple[str, Expr]]:
    return [(dim.name, extent) for dim, extent in nest.axes]


def program(name: str, operations: Sequence[Operation], outputs: Sequence[str | Operation] | None = None) -> Program:
    """Make an unscheduled program that runs operations one after the other.

    Args:
        operations: every operation comes after those whose results it reads, and all parts of a tensor before its
            readers.
        outputs: results to keep, by default the last one.

    Raises:
        IllegalSchedule: a result is read before it is computed, defined twice or in two forms; two things share a
            name; or an access may be out of bounds.
    """
    if not is_name(name):
        raise IllegalSchedule(f"program {name!r} has an invalid name: {NAME_RULE}")
    check_parts(name, operations)
    names = [operation.name for operation in operations]
    forms: dict[str, Tensor] = {}
    for number, operation in enumerate(operations):
        for tensor in (operation.output, *(read.tensor for read in operation.reads)):
            if forms.setdefault(tensor.name, tensor) != tensor:
                raise IllegalSchedule(f"program {name} has two tensors named {tensor.name}: give each its own name")
            if tensor is not operation.output and tensor.name in names[number + 1:]:
                raise IllegalSchedule(f"{operation.name} reads {tensor.name} before it is computed: put {tensor.name} "
                                      f"first")
    loops = {dim.name for operation in operations for dim, _ in (*operation.output.axes, *operation.reduced)}
    both = sorted(set(forms) & loops)
    if both:
        raise IllegalSchedule(f"program {name} has a tensor and a dimension named {both[0]}: give each its own name")
    chosen = tuple(each if isinstance(each, str) else each.name for each in (outputs or names[-1:]))
    unknown = [each for each in chosen if each not in names]
    if unknown:
        raise IllegalSchedule(f"program {name} computes no {unknown[0]}; it computes: {', '.join(names)}")
    nests = [Nest(each.nest, each, each.loops()) for each in operations]
    for nest in nests:
        check_accesses(nest)
    return Program(name, tuple(Launch((nest,)) for nest in nests), chosen)
