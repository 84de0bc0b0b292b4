"""Offsets of elements in ragged storage, in O(1), by the dimension graph or by pointers.

With dimensions 0 .. n-1 of extents e, the volume of a slice at dimension k is the sum over x < e_k of the volume at
k + 1. Volumes are stored as products; factors that do not depend on x are moved out of the sum:

    V_n = 1;   V_k = rest * e_k                  if no factor of V_{k+1} depends on x_k
               V_k = rest * A[.., e_k]           otherwise; A[.., x] = sum over y < x of the factors that do
    offset  = sum over k of rest_k * (x_k or A[.., x_k])

A table therefore has only the axes on which its slices depend, and slices of one size need no table.

Example: scores[batch, row(batch), head, col(batch)] has one table A[batch] = sum of length(batch)^2, and its offset is
8 A[batch] + 8 row length(batch) + head length(batch) + col.

Formats of sparse tensors (CSF) have a table of pointers per level instead (`pointer_steps`):

    position of (x_0 .. x_k) = position of (x_0 .. x_{k-1}) * e_k + x_k                if e_k reads no dimension
                             = pointers_k[position of (x_0 .. x_{k-1})] + x_k          otherwise
    pointers_k[p]            = sum of e_k over all positions before p

The offset is the last position, the same as that of the dimension graph. But a level treats its extents as a function
of all dimensions around it, so it has an entry for every slice, and depends on the position of the level before.
Compilers cannot prove that rows found by pointers are evenly spaced, so their tiles cannot be offloaded. In the example
there are offsets[batch], shared by all heads, and pointers[(offsets[batch] + row) * 8 + head], one entry for every row
of every head.

Source: CoRa §5.3, Figure 8; §7.4 (pointers). Departures: an extent may depend on any number of dimensions, so a table
may have several axes; slices inside exactly one dimension use the equal table of the dimension graph for pointers, too,
so that identities of fused loops hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, simplify_expr, walk
from sparloom.ragged.dimensions import Axis, canonical_names, free_names, round_up, substitute
from sparloom.ragged.tensor import At, Largest, Offsets, Pointers, StoredDims, Table, Tensor, length_indexed_by

TableEntries = Callable[[Table], Any]  # an array, or a number for a table without axes
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder, "min": np.minimum,
    "max": np.maximum,
}


@dataclass(frozen=True)
class Step:
    """Contribution of one dimension to an offset: the product of `rest` times `position`; both read dimensions."""

    rest: tuple[Expr, ...]
    position: Expr


Access = Callable[[Tensor], tuple[Step, ...]]
"""Rule for offsets: from a tensor to steps over the stored dimensions."""


@lru_cache(maxsize=1024)
def stored_dims(tensor: Tensor) -> StoredDims:
    """Return the stored dimensions: padded, with dense ones as large as the largest slice, and rearranged."""
    multiples = dict(tensor.padding)
    axes: list[Axis] = []
    coordinates: list[Expr] = []
    if tensor.local is None:
        for dim, extent in tensor.axes:
            whole = largest_extent(extent, tensor.axes) if dim in tensor.full else extent
            axes.append((dim, round_up(whole, multiples.get(dim, 1))))
            coordinates.append(dim)
    else:
        for dim, first, extent in tensor.local:
            axes.append((dim, round_up(extent, multiples.get(dim, 1))))
            coordinates.append(simplify_expr(dim - first))
    found = StoredDims(tuple(axes), tuple(coordinates))
    for change in tensor.changes:
        found = change.applied(tensor.name, found)
    return found


def largest_extent(extent: Expr, axes: Sequence[Axis]) -> Expr:
    """Return the maximum of an extent over all coordinates that it reads."""
    chosen = _closure(free_names(extent), axes)
    if not chosen:
        return extent
    names = canonical_names(dim for dim, _ in chosen)
    extents = tuple(substitute(each, names) for _, each in chosen)
    return At(Largest(extents, substitute(extent, names)), ())


@lru_cache(maxsize=1024)
def offset_steps(tensor: Tensor) -> tuple[Step, ...]:
    """Return the steps whose sum is the offset of an element, over the stored dimensions."""
    return _steps(tensor)[0]


@lru_cache(maxsize=1024)
def storage_size(tensor: Tensor) -> Expr:
    """Return the number of elements of the storage."""
    return _product(_steps(tensor)[1])


@lru_cache(maxsize=1024)
def volume(axes: tuple[Axis, ...]) -> Expr:
    """Return the number of coordinates."""
    return _product(_walk(axes)[1])


def table_steps(axes: Sequence[Axis]) -> tuple[Step, ...]:
    """Return the steps whose sum is the index of a table entry."""
    return _walk(axes)[0]


def _steps(tensor: Tensor) -> tuple[tuple[Step, ...], tuple[Expr, ...]]:
    for dim in (*dict(tensor.padding), *tensor.full):
        for inner, extent in tensor.axes:
            length = length_indexed_by(extent, dim.name)
            if length is not None:
                raise IllegalSchedule(f"tensor {tensor.name}: {dim.name} cannot be padded, since the extent of "
                                      f"{inner.name} reads length function {length.name} at it, which has no entry "
                                      f"beyond its end")
    return _walk(stored_dims(tensor).axes)


def _walk(axes: Sequence[Axis]) -> tuple[tuple[Step, ...], tuple[Expr, ...]]:
    """Return steps, and factors of the volume of the whole."""
    factors: tuple[Expr, ...] = ()
    steps: list[Step] = []
    for number in reversed(range(len(axes))):
        dim, extent = axes[number]
        varying = tuple(factor for factor in factors if dim.name in free_names(factor))
        rest = tuple(factor for factor in factors if dim.name not in free_names(factor))
        if varying:
            position = _offsets(axes[: number + 1], _product(varying))
            steps.append(Step(rest, position))
            whole = substitute(position, {dim.name: extent})
        else:
            steps.append(Step(rest, dim))
            whole = extent
        factors = merge_constants((*rest, whole))
    return tuple(reversed(steps)), factors


def _offsets(axes: Sequence[Axis], summand: Expr) -> At:
    """Read the table of sums of `summand` along the last axis, with no more axes than it needs.

    If the extent of an axis depends on one that is left out, the largest extent is taken.
    """
    last = axes[-1][0]
    chosen = [axis for axis in axes if axis[0].name in free_names(summand)]
    left_out = any(free_names(extent) - {dim.name for dim, _ in chosen} for dim, extent in chosen)
    if left_out and any(isinstance(node, At) and len(node.args) > 1 for node in walk(summand)):
        chosen = _closure(free_names(summand), axes)  # a table of several axes has no entry outside them
    names = canonical_names(dim for dim, _ in chosen)
    inside = {dim.name for dim, _ in chosen}
    extents = [extent if free_names(extent) <= inside else largest_extent(extent, axes) for _, extent in chosen]
    table = Offsets(tuple(substitute(extent, names) for extent in extents), substitute(summand, names))
    assert chosen[-1][0] == last
    return At(table, tuple(dim for dim, _ in chosen))


def _closure(names: set[str], axes: Sequence[Axis]) -> list[Axis]:
    """Select the axes with these names and all axes that their extents depend on."""
    wanted = set(names)
    for dim, extent in reversed(axes):
        if dim.name in wanted:
            wanted |= free_names(extent)
    return [axis for axis in axes if axis[0].name in wanted]


def merge_constants(factors: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Multiply constants and put them first; drop 1."""
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
    """Return the steps whose sum is the offset of an element, by pointers; local tensors are accessed as by
    `offset_steps`.
    """
    found = offset_steps(tensor)
    if tensor.local is not None:
        return found
    axes = stored_dims(tensor).axes
    names = canonical_names(dim for dim, _ in axes)
    extents = tuple(substitute(extent, names) for _, extent in axes)
    steps: tuple[Step, ...] = ()
    count: Expr = Const(1)
    for number, (dim, extent) in enumerate(axes):
        if free_names(extent):
            table = (Offsets(extents[:1], extents[1]) if number == 1
                     else Pointers(extents[:number], extents[number], count))
            steps, count = (Step((), At(table, (_sum(steps),))), Step((), dim)), At(table, (count,))
        else:
            steps = (*(Step(merge_constants((*step.rest, extent)), step.position) for step in steps), Step((), dim))
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


def evaluate(expr: Expr, values: Mapping[str, Any], entries: TableEntries) -> Any:
    """Evaluate an extent or offset; operands of // and % are at least 0, as extents are.

    Args:
        values: int64 numbers or arrays of one shape, by dimension.
        entries: returns the entries of a table.

    Raises:
        TypeError: a part is not an integer expression.
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
            coordinates = {dim.name: evaluate(arg, values, entries)
                           for (dim, _), arg in zip(table.axes, args, strict=True)}
            return found[evaluate_offset(table_steps(table.axes), coordinates, entries)].astype(np.int64)
        case Binary(op, a, b) if op in _OPERATORS:
            return _OPERATORS[op](evaluate(a, values, entries), evaluate(b, values, entries))
    raise TypeError(f"{expr!r} is not an integer expression of dimensions")


def evaluate_offset(steps: tuple[Step, ...], values: Mapping[str, Any], entries: TableEntries) -> Any:
    """Add up the steps of an offset."""
    total: Any = np.int64(0)
    for step in steps:
        term = evaluate(step.position, values, entries)
        for factor in step.rest:
            term = term * evaluate(factor, values, entries)
        total = total + term
    return total
