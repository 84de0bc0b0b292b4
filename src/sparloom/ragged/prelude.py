"""Kernels that build tables: the prelude.

Offsets are running sums, the maps of a fused loop are written by running the loops that it fuses, and the largest
extent is a running maximum.

Source: CoRa §5.1 and §5.3; one pass over the coordinates of each table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparloom.ir import I32, I64, Assign, Binary, Cast, Const, Declare, For, Kernel, Let, Param, Ref, Stmt, Store, walk
from sparloom.ragged.dimensions import Axis, round_up
from sparloom.ragged.layout import volume
from sparloom.ragged.lookups import Lookups
from sparloom.ragged.tables import At, FusedInner, FusedOuter, Largest, Length, Offsets, Order, Pointers, Table

__all__ = ["TableKernel", "closure", "table_kernel"]

OUT = "entries"


@dataclass(frozen=True)
class TableKernel:
    """Builds one table from others: `reads` are its parameters, `entries` is the last."""

    table: Table
    kernel: Kernel
    reads: tuple[Table, ...]


def closure(tables: Iterable[Table]) -> tuple[TableKernel, ...]:
    """Give the kernels of tables and of all that they are built from, in an order in which they can run."""
    found: dict[Table, TableKernel] = {}

    def add(table: Table) -> None:
        if table in found or isinstance(table, Length):
            return
        made = table_kernel(table)
        sizes = [node.table for node in walk(volume(table.axes)) if isinstance(node, At)]
        for each in (*made.reads, *sizes):
            add(each)
        found[table] = made

    for table in tables:
        add(table)
    return tuple(found.values())


def table_kernel(table: Table) -> TableKernel:
    """Write the kernel of a table that is not given; an Order gets the work of every iteration, to be sorted."""
    axes = table.around if isinstance(table, Pointers) else table.axes
    lookups = Lookups((OUT, "sum_so_far", "place", "most", "start", "f", "x0", "x1", *(dim.name for dim, _ in axes)))
    match table:
        case Offsets():
            body = _offsets(table, lookups)
        case Pointers():
            body = _pointers(table, lookups)
        case Largest(extents, value):
            most = Assign("most", Binary("max", Ref("most"), lookups.expr(value)))
            loops = _loops([(Ref(f"x{number}"), extent) for number, extent in enumerate(extents)], [most], lookups)
            body = [Declare("most", I64, Const(0)), *loops, Store(OUT, 0, Ref("most"))]
        case FusedOuter() | FusedInner():
            body = _fused(table, lookups)
        case Order(extent, work):
            body = _loops([(Ref("x0"), extent)], [Store(OUT, Ref("x0"), lookups.expr(work))], lookups)
        case _:
            raise TypeError(f"{table!r} is not built by a kernel")
    entries = Param(OUT, I64 if isinstance(table, Order) else table.type, buffer=True, const=False)
    name = f"{table.label}_{hashlib.sha256(repr(table).encode()).hexdigest()[:12]}"
    return TableKernel(table, Kernel(name, (*lookups.params(), entries), tuple(body)), tuple(lookups.names))


def _offsets(table: Offsets, lookups: Lookups) -> list[Stmt]:
    """for x..: sum = 0; for last: entries[x.., last] = sum; sum += summand; entries[x.., end] = sum"""
    *before, (last, _) = table.axes
    end, outer = table.extents[-1], [dim for dim, _ in before]
    running = Ref("sum_so_far")
    inside = [
        Store(OUT, lookups.table_place(table, [*outer, last]), running),
        Assign("sum_so_far", running + lookups.expr(table.summand)),
    ]
    body = [
        Declare("sum_so_far", I64, Const(0)),
        *_loops([(last, end)], inside, lookups),
        Store(OUT, lookups.table_place(table, [*outer, end]), running),
    ]
    return _loops(before, body, lookups)


def _pointers(table: Pointers, lookups: Lookups) -> list[Stmt]:
    """sum = 0; place = 0; for x..: entries[place] = sum; sum += summand; place += 1;  then entries[place] = sum"""
    place, running = Ref("place"), Ref("sum_so_far")
    store = Store(OUT, place, running)
    inside = [store, Assign("sum_so_far", running + lookups.expr(table.summand)), Assign("place", place + 1)]
    loops = _loops(table.around, inside, lookups)
    return [Declare("sum_so_far", I64, Const(0)), Declare("place", I64, Const(0)), *loops, store]


def _fused(table: FusedOuter | FusedInner, lookups: Lookups) -> list[Stmt]:
    """for x0: for x1 < inner(x0): entries[start + x1] = x0 or x1; beyond the total: extent, or how far beyond"""
    is_outer = isinstance(table, FusedOuter)
    x0, x1, f = Ref("x0"), Ref("x1"), Ref("f")
    start = Let("start", I64, lookups.expr(At(table.starts, (x0,))))
    store = Store(OUT, Ref("start") + x1, Cast(I32, x0 if is_outer else x1))
    lines = _loops([(x0, table.extent)], [start, *_loops([(x1, table.inner)], [store], lookups)], lookups)
    if table.multiple > 1:
        total = lookups.expr(table.total)
        beyond = lookups.expr(table.extent) if is_outer else f - total
        end = lookups.expr(round_up(table.total, table.multiple))
        lines.append(For("f", total, end, [Store(OUT, f, Cast(I32, beyond))]))
    return lines


def _loops(axes: Sequence[Axis], inside: Sequence[Stmt], lookups: Lookups) -> list[Stmt]:
    body = list(inside)
    for dim, extent in reversed(axes):
        body = [For(dim.name, 0, lookups.expr(extent), body)]
    return body
