"""Where elements lie: O(1) offsets into ragged storage by the dimension graph.

With dimensions 0 .. n-1 of extents e, the volume of a slice at dimension k is the sum over x < e_k of the volume at
k + 1. Volumes are kept as products; factors that do not depend on x stay outside of the sum:

    V_n = 1;   V_k = rest * e_k                  if no factor of V_{k+1} depends on x_k
               V_k = rest * A[.., e_k]           else, A[.., x] = sum over y < x of those that do
    offset  = sum over k of rest_k * (x_k or A[.., x_k])

So a table has only the axes on which its slices depend, and none is made for slices of one size.

Example: scores[batch, row(batch), head, col(batch)] has one table A[batch] = sum of length(batch)^2, and its offset is
8 A[batch] + 8 row length(batch) + head length(batch) + col.

Source: CoRa §5.3, Figure 8. Departure: an extent may depend on any number of dimensions, so a table may have several.

Where elements lie, found as formats of sparse tensors find it (CSF): by a table of pointers for every level.

    position of (x_0 .. x_k) = position of (x_0 .. x_{k-1}) * e_k + x_k                where e_k reads no dimension
                             = pointers_k[position of (x_0 .. x_{k-1})] + x_k          else
    pointers_k[p]            = sum of e_k over all positions before p

The offset is the last position: elements lie where the dimension graph puts them. But a level takes its extents for a
function of everything around it, so it has an entry for every slice, and is read at what the level before has given.
Rows that pointers lead to are not known to be evenly spaced, so their tiles cannot be left to a routine for products.

Example: scores[batch, row(batch), head, col(batch)] has offsets[batch], which all its kind share, and
pointers[(offsets[batch] + row) * 8 + head], one entry for every row of every head.

Source: CoRa §5.3, §7.4 (the scheme of past work). Departure: slices that only one dimension stands around have the
table of the dimension graph, which is the same, so what is known of fused loops holds.

Values of integer expressions, for numbers and for arrays of coordinates at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, simplify_expr, walk
from sparloom.ragged.dimensions import Axis, Dim, canonical, free, replaced, round_up
from sparloom.ragged.tensor import At, Largest, Offsets, Pointers, Stored, Table, Tensor, asked_for

__all__ = [
    "Access", "Step", "evaluate", "largest", "merged", "offset_steps", "place", "pointer_steps", "size", "stored",
    "table_steps", "volume",
]


@dataclass(frozen=True)
class Step:
    """What one dimension adds to an offset: the product of `rest`, times `position`; both read the dimensions."""

    rest: tuple[Expr, ...]
    position: Expr


Access = Callable[[Tensor], tuple[Step, ...]]
"""How elements are found: from a tensor to steps, over the dimensions that are stored."""


@lru_cache(maxsize=1024)
def stored(tensor: Tensor) -> Stored:
    """Give the dimensions as they are stored: padded, where dense those of the largest slice, and rearranged."""
    multiples = dict(tensor.padding)
    axes: list[Axis] = []
    places: list[Expr] = []
    if tensor.local is None:
        for dim, extent in tensor.axes:
            whole = largest(extent, tensor.axes) if dim in tensor.full else extent
            axes.append((dim, round_up(whole, multiples.get(dim, 1))))
            places.append(dim)
    else:
        for dim, first, extent in tensor.local:
            axes.append((dim, round_up(extent, multiples.get(dim, 1))))
            places.append(simplify_expr(dim - first))
    found = Stored(tuple(axes), tuple(places))
    for change in tensor.changes:
        found = change.applied(tensor.name, found)
    return found


def largest(extent: Expr, axes: Sequence[Axis]) -> Expr:
    """Give the maximum of an extent over all coordinates that it reads."""
    chosen = _closure(free(extent), axes)
    if not chosen:
        return extent
    names = canonical(dim for dim, _ in chosen)
    extents = tuple(replaced(each, names) for _, each in chosen)
    return At(Largest(extents, replaced(extent, names)), ())


@lru_cache(maxsize=1024)
def offset_steps(tensor: Tensor) -> tuple[Step, ...]:
    """Give the steps whose sum is the offset of an element, over the dimensions that are stored.

    Raises:
        IllegalSchedule: bulk padding of a dimension whose slices are not all that varies.
    """
    return _steps(tensor)[0]


@lru_cache(maxsize=1024)
def size(tensor: Tensor) -> Expr:
    """Give the number of elements of its storage."""
    return _product(_steps(tensor)[1])


@lru_cache(maxsize=1024)
def volume(axes: tuple[Axis, ...]) -> Expr:
    """Give the number of coordinates."""
    return _product(_walk(axes, {})[1])


def table_steps(axes: Sequence[Axis]) -> tuple[Step, ...]:
    """Give the steps whose sum is the place of an entry of a table."""
    return _walk(axes, {})[0]


def _steps(tensor: Tensor) -> tuple[tuple[Step, ...], tuple[Expr, ...]]:
    for dim in (*dict(tensor.padding), *tensor.full):
        for inner, extent in tensor.axes:
            asked = asked_for(extent, dim.name)
            if asked is not None:
                raise IllegalSchedule(f"tensor {tensor.name}: {dim.name} cannot be padded, since the extent of "
                                      f"{inner.name} asks length function {asked.name} for it, which has no entry "
                                      f"beyond its end")
    axes = stored(tensor).axes
    if tensor.bulk and tensor.changes:
        raise IllegalSchedule(f"tensor {tensor.name}: dimensions with bulk padding cannot be rearranged: take one of "
                              "the two")
    order = [dim for dim, _ in axes]
    sums = {order[order.index(dim) - 1]: (dim, multiple) for dim, multiple in tensor.bulk if order.index(dim) > 0}
    if len(sums) < len(tensor.bulk):
        raise _bulk(tensor, order[0])
    steps, total, summed = _walk(axes, {dim: multiple for dim, (_, multiple) in sums.items()})
    extents = dict(axes)
    for dim, (inner, _) in sums.items():
        if summed.get(dim) != (extents[inner],):
            raise _bulk(tensor, inner)
    return steps, total


def _bulk(tensor: Tensor, dim: Dim) -> IllegalSchedule:
    return IllegalSchedule(f"bulk padding of {dim.name} in tensor {tensor.name}: slices of {dim.name} must vary with "
                           f"the dimension before it, and nothing inside them may vary; pad the slices instead")


def _walk(axes: Sequence[Axis], bulk: dict[Dim, int]) -> tuple[
        tuple[Step, ...], tuple[Expr, ...], dict[Dim, tuple[Expr, ...]]]:
    """Steps, volume of the whole, and by dimension the factors that are summed over it."""
    factors: tuple[Expr, ...] = ()
    steps: list[Step] = []
    summed: dict[Dim, tuple[Expr, ...]] = {}
    for number in reversed(range(len(axes))):
        dim, extent = axes[number]
        varying = tuple(factor for factor in factors if dim.name in free(factor))
        rest = tuple(factor for factor in factors if dim.name not in free(factor))
        if varying:
            summed[dim] = varying
            position = _offsets(axes[: number + 1], _product(varying))
            steps.append(Step(rest, position))
            whole = round_up(replaced(position, {dim.name: extent}), bulk.get(dim, 1))
        else:
            steps.append(Step(rest, dim))
            whole = extent
        factors = merged((*rest, whole))
    return tuple(reversed(steps)), factors, summed


def _offsets(axes: Sequence[Axis], summand: Expr) -> At:
    """Read the table of sums of `summand` along the last axis, over no more axes than it needs.

    The extent of an axis may vary with one that is left out: then it is the largest.
    """
    last = axes[-1][0]
    chosen = [axis for axis in axes if axis[0].name in free(summand)]
    left_out = any(free(extent) - {dim.name for dim, _ in chosen} for dim, extent in chosen)
    if left_out and any(isinstance(node, At) and len(node.args) > 1 for node in walk(summand)):
        chosen = _closure(free(summand), axes)  # a table of several axes has no entry outside of them
    names = canonical(dim for dim, _ in chosen)
    inside = {dim.name for dim, _ in chosen}
    extents = [extent if free(extent) <= inside else largest(extent, axes) for _, extent in chosen]
    table = Offsets(tuple(replaced(extent, names) for extent in extents), replaced(summand, names))
    assert chosen[-1][0] == last
    return At(table, tuple(dim for dim, _ in chosen))


def _closure(names: set[str], axes: Sequence[Axis]) -> list[Axis]:
    """Pick the axes named, and all that their extents depend on."""
    wanted = set(names)
    for dim, extent in reversed(axes):
        if dim.name in wanted:
            wanted |= free(extent)
    return [axis for axis in axes if axis[0].name in wanted]


def merged(factors: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Bring constants together, in front; leave out 1."""
    constant, others = 1, []
    for factor in factors:
        if isinstance(factor, Const):
            constant *= factor.value
        else:
            others.append(factor)
    others.sort(key=repr)
    return (*((Const(constant),) if constant != 1 else ()), *others)


def _product(factors: Sequence[Expr]) -> Expr:
    *first, last = factors or (Const(1),)
    total = last
    for factor in reversed(first):
        total = total * factor if isinstance(factor, Const) else factor * total
    return simplify_expr(total)


@lru_cache(maxsize=1024)
def pointer_steps(tensor: Tensor) -> tuple[Step, ...]:
    """Give the steps whose sum is the offset of an element, by pointers; see `offset_steps`, as which local tensors go.

    Raises:
        IllegalSchedule: bulk padding inside of more than one dimension: there is no position in it.
    """
    found = offset_steps(tensor)
    if tensor.local is not None:
        return found
    axes = stored(tensor).axes
    for dim, _ in tensor.bulk:
        if axes[1][0] != dim:
            raise IllegalSchedule(f"tensor {tensor.name}: bulk padding of {dim.name} inside of several dimensions has "
                                  f"no positions: pad the slices instead, or access it by offsets")
    names = canonical(dim for dim, _ in axes)
    extents = tuple(replaced(extent, names) for _, extent in axes)
    steps: tuple[Step, ...] = ()
    count: Expr = Const(1)
    for number, (dim, extent) in enumerate(axes):
        if free(extent):
            table = (Offsets(extents[:1], extents[1]) if number == 1
                     else Pointers(extents[:number], extents[number], count))
            steps, count = (Step((), At(table, (_sum(steps),))), Step((), dim)), At(table, (count,))
        else:
            steps = (*(Step(merged((*step.rest, extent)), step.position) for step in steps), Step((), dim))
            count = simplify_expr(count * extent)
    return steps


def _sum(steps: tuple[Step, ...]) -> Expr:
    total: Expr = Const(0)
    for step in steps:
        term = step.position
        for factor in step.rest:
            term = term * factor
        total = total + term
    return simplify_expr(total)


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
