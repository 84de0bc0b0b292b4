"""Tables and tensors as kernels see them: flat buffers and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparloom.ir import I64, Binary, Cast, Const, Expr, Load, Param, Ref, fresh, rebuild, simplify_expr
from sparloom.ragged.dimensions import Dim, expanded, replaced
from sparloom.ragged.identities import simplify_map, sum_of_positions
from sparloom.ragged.layout import Access, Step, offset_steps, stored, table_steps
from sparloom.ragged.polynomial import difference, quotient
from sparloom.ragged.tables import At, Table
from sparloom.ragged.tensor import Read, Tensor

__all__ = ["Lookups"]


class Lookups:
    """Gives every table that a kernel reads a parameter.

    Args:
        taken: names that the kernel uses for something else.
        access: how elements of tensors are found.
    """

    def __init__(self, taken: Iterable[str], access: Access = offset_steps) -> None:
        self._taken = set(taken)
        self._access = access
        self.limits: dict[str, int] = {}  # constants that loops stay below
        self.arrays: set[str] = set()  # local tensors that have one
        self.names: dict[Table, str] = {}

    def expr(self, expr: Expr, defined: Mapping[str, Expr] | None = None) -> Expr:
        """Lower an expression: entries of tables and elements of tensors become loads.

        Args:
            defined: what names stand for, for identities of fused loops.
        """
        defined = defined or {}
        match expr:
            case Read(tensor, indices):
                return Load(tensor.name, self.offset(tensor, indices, defined))
            case At():
                known = simplify_map(expr)
                return self._entry(expr.table, expr.args, defined) if known == expr else self.expr(known, defined)
        return simplify_expr(rebuild(expr, expr=lambda inner: self.expr(inner, defined), body=lambda body: body))

    def offset(self, tensor: Tensor, indices: Sequence[Expr], defined: Mapping[str, Expr] | None = None) -> Expr:
        """Give the flat index of an element, in its own storage."""
        kept, defined = stored(tensor), defined or {}
        values = {dim.name: index for (dim, _), index in zip(tensor.axes, indices, strict=True)}
        plain = tensor.local is None and not tensor.changes
        places = [values[dim.name] if plain else self._coordinate(place, values, defined)
                  for (dim, _), place in zip(kept.axes, kept.places, strict=True)]
        return self._place(self._access(tensor), [dim for dim, _ in kept.axes], places, defined=defined)

    def _coordinate(self, place: Expr, values: Mapping[str, Expr], defined: Mapping[str, Expr]) -> Expr:
        """Put indices into a coordinate of rearranged storage; blocks that loops run along need no division."""
        match place:
            case Binary("//" | "%" as op, whole, Const(factor)):
                inner = expanded(self._coordinate(whole, values, defined), defined)
                parts = quotient(inner, int(factor), self.limits)
                if parts is not None:
                    return parts[0] if op == "//" else parts[1]
                return Binary(op, inner, Const(factor))
            case Binary("-", dim, first):
                return difference(expanded(replaced(dim, values), defined), expanded(first, defined))
            case Binary("+", a, b):
                return sum_of_positions([self._coordinate(part, values, defined) for part in (a, b)], defined)
        return replaced(place, values)

    def fresh(self, name: str) -> str:
        """Make a name that nothing in the kernel has."""
        return fresh(name, self._taken)

    def params(self) -> tuple[Param, ...]:
        """Declare the tables read so far, in order of first use."""
        return tuple(Param(name, table.type if table.axes else I64, bool(table.axes))
                     for table, name in self.names.items())

    def _entry(self, table: Table, args: Sequence[Expr], defined: Mapping[str, Expr]) -> Expr:
        name = self._name(table)
        if not table.axes:
            return Ref(name)
        place = self.table_place(table, args, defined)
        load = Load(name, place)
        return load if table.type == I64 else Cast(I64, load)

    def table_place(self, table: Table, args: Sequence[Expr], defined: Mapping[str, Expr] | None = None) -> Expr:
        """Give the flat index of an entry."""
        dims = [dim for dim, _ in table.axes]
        return self._place(table_steps(table.axes), dims, args, defined=defined or {})

    def _name(self, table: Table) -> str:
        if table not in self.names:
            self.names[table] = fresh(table.label, self._taken)
        return self.names[table]

    def _place(self, steps: Sequence[Step], dims: Sequence[Dim], indices: Sequence[Expr], *,
               defined: Mapping[str, Expr]) -> Expr:
        values = {dim.name: index for dim, index in zip(dims, indices, strict=True)}
        groups: dict[tuple[Expr, ...], list[Expr]] = {}
        for step in steps:
            rest = tuple(replaced(factor, values) for factor in step.rest)
            groups.setdefault(rest, []).append(replaced(step.position, values))
        total: Expr = Const(0)
        for rest, positions in groups.items():
            term = self.expr(sum_of_positions(positions, defined), defined)
            for factor in reversed(rest):
                term = term * self.expr(factor, defined)
            total = term if total == Const(0) else total + term
        return simplify_expr(total)
