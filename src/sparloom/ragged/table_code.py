"""Code that reads tables in kernels (`Lookups`, `hoist`, `prune`) and code that builds them, the prelude
(`table_kernel`).

Lookups know three identities of a fused loop f over o and i(o). By the first, a tensor stored in the order of the fused
loop is accessed at f alone:

    starts(outer(f)) + inner(f)  ->  f          outer(starts(o) + i)  ->  o          inner(starts(o) + i)  ->  i

Table kernels make one pass over the coordinates: offsets are running sums, the maps of a fused loop are written by the
two loops that it replaces, and the largest extent is a running maximum.

Source: CoRa §5.1 to §5.3; §7.4 (load hoisting).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sparloom import ir
from sparloom.ragged.dimensions import Axis, Dim, difference, expand, quotient, substitute
from sparloom.ragged.layout import Access, Step, offset_steps, stored_dims, table_steps, volume
from sparloom.ragged.tensor import (
    At,
    FusedInner,
    FusedOuter,
    Largest,
    Length,
    Offsets,
    Order,
    Pointers,
    Read,
    Table,
    Tensor,
)

Body = tuple[ir.Stmt, ...]
Meanings = Mapping[str, ir.Expr]  # definitions of names
OUT = "entries"  # parameter of a table kernel: the table it builds


class Lookups:
    """Parameters of a kernel for the tables it reads, and loads from tables and tensors.

    Args:
        taken: names that the kernel already uses.
        access: rule for offsets of elements.
    """

    def __init__(self, taken: Iterable[str], access: Access = offset_steps) -> None:
        self._taken = set(taken)
        self._access = access
        self.limits: dict[str, int] = {}  # constants that loops stay below
        self.arrays: set[str] = set()  # local tensors that are allocated
        self.names: dict[Table, str] = {}

    def expr(self, expr: ir.Expr, defined: Meanings | None = None) -> ir.Expr:
        """Lower an expression: table entries and tensor elements become loads.

        Args:
            defined: definitions of names, for identities of fused loops.
        """
        defined = defined or {}
        match expr:
            case Read(tensor, indices):
                return ir.Load(tensor.name, self.offset(tensor, indices, defined))
            case At():
                known = simplify_map(expr)
                return self._entry(expr.table, expr.args, defined) if known == expr else self.expr(known, defined)
        return ir.simplify_expr(ir.rebuild(expr, expr=lambda inner: self.expr(inner, defined)))

    def offset(self, tensor: Tensor, indices: Sequence[ir.Expr], defined: Meanings | None = None) -> ir.Expr:
        """Return the flat index of an element in the storage of its tensor."""
        stored, defined = stored_dims(tensor), defined or {}
        values = {dim.name: index for (dim, _), index in zip(tensor.axes, indices, strict=True)}
        plain = tensor.local is None and not tensor.changes
        coordinates = [values[dim.name] if plain else self._coordinate(each, values, defined)
                       for (dim, _), each in zip(stored.axes, stored.coordinates, strict=True)]
        return self._index(self._access(tensor), [dim for dim, _ in stored.axes], coordinates, defined=defined)

    def _coordinate(self, coordinate: ir.Expr, values: Meanings, defined: Meanings) -> ir.Expr:
        """Substitute indices in a stored coordinate; blocks along which loops run need no division."""
        match coordinate:
            case ir.Binary("//" | "%" as op, whole, ir.Const(factor)):
                inner = expand(self._coordinate(whole, values, defined), defined)
                parts = quotient(inner, int(factor), self.limits)
                if parts is not None:
                    return parts[0] if op == "//" else parts[1]
                return ir.Binary(op, inner, ir.Const(factor))
            case ir.Binary("-", dim, first):
                return difference(expand(substitute(dim, values), defined), expand(first, defined))
        return substitute(coordinate, values)

    def fresh(self, name: str) -> str:
        """Make a name that is unused in the kernel."""
        return ir.fresh(name, self._taken)

    def params(self) -> tuple[ir.Param, ...]:
        """Declare the tables read so far, in order of first use."""
        return tuple(ir.Param(name, table.type if table.axes else ir.I64, bool(table.axes))
                     for table, name in self.names.items())

    def _entry(self, table: Table, args: Sequence[ir.Expr], defined: Meanings) -> ir.Expr:
        name = self._name(table)
        if not table.axes:
            return ir.Ref(name)
        load = ir.Load(name, self.table_index(table, args, defined))
        return load if table.type == ir.I64 else ir.Cast(ir.I64, load)

    def table_index(self, table: Table, args: Sequence[ir.Expr], defined: Meanings | None = None) -> ir.Expr:
        """Return the flat index of a table entry."""
        dims = [dim for dim, _ in table.axes]
        return self._index(table_steps(table.axes), dims, args, defined=defined or {})

    def _name(self, table: Table) -> str:
        if table not in self.names:
            self.names[table] = ir.fresh(table.label, self._taken)
        return self.names[table]

    def _index(self, steps: Sequence[Step], dims: Sequence[Dim], indices: Sequence[ir.Expr], *,
               defined: Meanings) -> ir.Expr:
        values = {dim.name: index for dim, index in zip(dims, indices, strict=True)}
        groups: dict[tuple[ir.Expr, ...], list[ir.Expr]] = {}
        for step in steps:
            rest = tuple(substitute(factor, values) for factor in step.rest)
            groups.setdefault(rest, []).append(substitute(step.position, values))
        total: ir.Expr = ir.Const(0)
        for rest, positions in groups.items():
            term = self.expr(sum_of_positions(positions, defined), defined)
            for factor in reversed(rest):
                term = term * self.expr(factor, defined)
            total = term if total == ir.Const(0) else total + term
        return ir.simplify_expr(total)


def sum_of_positions(positions: Sequence[ir.Expr], defined: Meanings) -> ir.Expr:
    """Add up positions, using the first identity; `defined` tells which names are entries of maps."""
    left = list(positions)
    for start in positions:
        for inner in positions:
            fused = _fused_variable(start, inner, defined)
            if fused is not None and start in left and inner in left:
                left.remove(start)
                left[left.index(inner)] = fused
    total: ir.Expr = ir.Const(0)
    for position in left:
        total = position if total == ir.Const(0) else total + position
    return total


def simplify_map(expr: ir.Expr) -> ir.Expr:
    """Apply the second and third identity to a table entry."""
    match expr:
        case At(FusedOuter() | FusedInner() as table, (ir.Binary("+", At(Offsets() as starts, (o,)), i),)) if (
                starts == table.starts):
            return o if isinstance(table, FusedOuter) else i
    return expr


def _fused_variable(start: ir.Expr, inner: ir.Expr, defined: Meanings) -> ir.Expr | None:
    """Return f for starts(outer(f)) and inner(f)."""
    if not isinstance(start, At) or not isinstance(start.table, Offsets) or len(start.args) != 1:
        return None
    match _definition(start.args[0], defined), _definition(inner, defined):
        case At(FusedOuter() as outers, (f,)), At(FusedInner() as inners, (g,)):
            return f if f == g and outers.starts == inners.starts == start.table else None
    return None


def _definition(expr: ir.Expr, defined: Meanings) -> ir.Expr:
    while isinstance(expr, ir.Ref) and expr.name in defined:
        expr = defined[expr.name]
    return expr


def hoist(kernel: ir.Kernel, tables: Collection[str]) -> ir.Kernel:
    """Move loads from tables out of loops that do not change their index.

    `for i: S[table[x]]  ->  let entry = table[x]; for i: S[entry]`, from the outermost loop inwards. Always legal:
    tables are not written, and the table has an entry for an index that does not depend on the loop. Loads whose index
    is guarded by the condition of a Select stay inside it.

    Args:
        tables: names of the buffers that are tables.

    Source: CoRa §7.4 (load hoisting).
    """
    types = {param.name: param.type for param in kernel.params}
    taken = {*types, *ir.declared_names(kernel)}

    def in_body(body: Body) -> Body:
        lines: list[ir.Stmt] = []
        for stmt in body:
            if isinstance(stmt, ir.For):
                lets, stmt = _hoist_loads(stmt, tables, types=types, taken=taken)
                lines += lets
            lines.append(ir.rebuild(stmt, body=in_body))
        return tuple(lines)

    return replace(kernel, body=in_body(kernel.body))


def _hoist_loads(loop: ir.For, tables: Collection[str], *, types: dict[str, ir.Type], taken: set[str]
                 ) -> tuple[list[ir.Let], ir.For]:
    """Return the lets that precede a loop, and the loop that uses them."""
    inside = {loop.var, *ir.declared_names(loop.body)}
    found: dict[ir.Expr, str] = {}
    lets: list[ir.Let] = []
    guarded: list[set[str]] = []  # names bounded by surrounding conditions

    def in_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Select):
            guarded.append(_guarded_names(expr.cond))
            selected = replace(expr, a=in_expr(expr.a))
            guarded.pop()
            return replace(selected, cond=in_expr(expr.cond), b=in_expr(expr.b))
        expr = ir.rebuild(expr, expr=in_expr)
        if not isinstance(expr, ir.Load) or expr.buffer not in tables or _names(expr.index) & inside.union(*guarded):
            return expr
        if expr not in found:
            found[expr] = ir.fresh(f"{expr.buffer}_entry", taken)
            lets.append(ir.Let(found[expr], types[expr.buffer], expr))
        return ir.Ref(found[expr])

    def in_body(body: Body) -> Body:
        return tuple(ir.rebuild(stmt, expr=in_expr, body=in_body) for stmt in body)

    body = in_body(loop.body)
    return lets, replace(loop, lo=in_expr(loop.lo), hi=in_expr(loop.hi), body=body)


def _guarded_names(cond: ir.Expr) -> set[str]:
    """Return the names that a condition bounds."""
    match cond:
        case ir.Binary("<", ir.Ref(name), _):
            return {name}
        case ir.Binary("and", a, b):
            return _guarded_names(a) | _guarded_names(b)
    return _names(cond)


def _names(expr: ir.Expr) -> set[str]:
    return {node.name for node in ir.walk(expr) if isinstance(node, ir.Ref)} | {
        node.buffer for node in ir.walk(expr) if isinstance(node, ir.Load)}


def prune(kernel: ir.Kernel, tables: Collection[str]) -> ir.Kernel:
    """Drop values and tables that are never read.

    `let a = S; T  ->  T` if T does not read a. Always legal: expressions have no side effects. The prelude therefore
    does not build the maps of a fused loop if all accesses use the fused variable.

    Args:
        tables: names of the parameters that are tables.
    """
    while True:
        used = {node.name for node in ir.walk(kernel) if isinstance(node, ir.Ref)}
        body = _without_unused(kernel.body, used)
        if body == kernel.body:
            break
        kernel = replace(kernel, body=body)
    read = used | {node.buffer for node in ir.walk(kernel) if hasattr(node, "buffer")}
    params = tuple(param for param in kernel.params if param.name in read or param.name not in tables)
    return replace(kernel, params=params)


def _without_unused(body: Body, used: set[str]) -> Body:
    return tuple(ir.rebuild(stmt, body=lambda inner: _without_unused(inner, used)) for stmt in body
                 if not isinstance(stmt, ir.Let) or stmt.name in used)


@dataclass(frozen=True)
class TableKernel:
    """Kernel that builds one table from others: `reads` are its parameters, `entries` is the last one."""

    table: Table
    kernel: ir.Kernel
    reads: tuple[Table, ...]


def prelude_kernels(tables: Iterable[Table]) -> tuple[TableKernel, ...]:
    """Return the kernels of tables and of everything they are built from, in an order in which they can run."""
    found: dict[Table, TableKernel] = {}

    def add(table: Table) -> None:
        if table in found or isinstance(table, Length):
            return
        made = table_kernel(table)
        sizes = [node.table for node in ir.walk(volume(table.axes)) if isinstance(node, At)]
        for each in (*made.reads, *sizes):
            add(each)
        found[table] = made

    for table in tables:
        add(table)
    return tuple(found.values())


def table_kernel(table: Table) -> TableKernel:
    """Write the kernel of a derived table; for an Order it computes the work of every iteration, to be sorted."""
    axes = table.around if isinstance(table, Pointers) else table.axes
    lookups = Lookups((OUT, "sum_so_far", "place", "most", "start", "x0", "x1", *(dim.name for dim, _ in axes)))
    match table:
        case Offsets():
            body = _offsets(table, lookups)
        case Pointers():
            body = _pointers(table, lookups)
        case Largest(extents, value):
            most = ir.Assign("most", ir.Binary("max", ir.Ref("most"), lookups.expr(value)))
            loops = _loops([(ir.Ref(f"x{number}"), extent) for number, extent in enumerate(extents)], [most], lookups)
            body = [ir.Declare("most", ir.I64, ir.Const(0)), *loops, ir.Store(OUT, 0, ir.Ref("most"))]
        case FusedOuter() | FusedInner():
            body = _fused_maps(table, lookups)
        case Order(extent, work):
            body = _loops([(ir.Ref("x0"), extent)], [ir.Store(OUT, ir.Ref("x0"), lookups.expr(work))], lookups)
        case _:
            raise TypeError(f"{table!r} is not built by a kernel")
    entries = ir.Param(OUT, ir.I64 if isinstance(table, Order) else table.type, buffer=True, const=False)
    name = f"{table.label}_{hashlib.sha256(repr(table).encode()).hexdigest()[:12]}"
    return TableKernel(table, ir.Kernel(name, (*lookups.params(), entries), tuple(body)), tuple(lookups.names))


def _offsets(table: Offsets, lookups: Lookups) -> list[ir.Stmt]:
    """for x..: sum = 0; for last: entries[x.., last] = sum; sum += summand; entries[x.., end] = sum"""
    *before, (last, _) = table.axes
    end, outer = table.extents[-1], [dim for dim, _ in before]
    running = ir.Ref("sum_so_far")
    inside = [
        ir.Store(OUT, lookups.table_index(table, [*outer, last]), running),
        ir.Assign("sum_so_far", running + lookups.expr(table.summand)),
    ]
    body = [
        ir.Declare("sum_so_far", ir.I64, ir.Const(0)),
        *_loops([(last, end)], inside, lookups),
        ir.Store(OUT, lookups.table_index(table, [*outer, end]), running),
    ]
    return _loops(before, body, lookups)


def _pointers(table: Pointers, lookups: Lookups) -> list[ir.Stmt]:
    """sum = 0; place = 0; for x..: entries[place] = sum; sum += summand; place += 1;  then entries[place] = sum"""
    place, running = ir.Ref("place"), ir.Ref("sum_so_far")
    store = ir.Store(OUT, place, running)
    inside = [store, ir.Assign("sum_so_far", running + lookups.expr(table.summand)), ir.Assign("place", place + 1)]
    loops = _loops(table.around, inside, lookups)
    return [ir.Declare("sum_so_far", ir.I64, ir.Const(0)), ir.Declare("place", ir.I64, ir.Const(0)), *loops, store]


def _fused_maps(table: FusedOuter | FusedInner, lookups: Lookups) -> list[ir.Stmt]:
    """for x0: for x1 < inner(x0): entries[start + x1] = x0 or x1"""
    x0, x1 = ir.Ref("x0"), ir.Ref("x1")
    start = ir.Let("start", ir.I64, lookups.expr(At(table.starts, (x0,))))
    store = ir.Store(OUT, ir.Ref("start") + x1, ir.Cast(ir.I32, x0 if isinstance(table, FusedOuter) else x1))
    return _loops([(x0, table.extent)], [start, *_loops([(x1, table.inner)], [store], lookups)], lookups)


def _loops(axes: Sequence[Axis], inside: Sequence[ir.Stmt], lookups: Lookups) -> list[ir.Stmt]:
    body = list(inside)
    for dim, extent in reversed(axes):
        body = [ir.For(dim.name, 0, lookups.expr(extent), body)]
    return body
