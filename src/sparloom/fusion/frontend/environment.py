"""State of the front end: the values that names stand for, their types, arrays and accesses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numba.core import types

from sparloom.fusion.frontend.ssa import Allocation, TypedSsa
from sparloom.fusion.program import GENERATED, Access, Array, Iterator, Scalar, SourceLocation, location_at, refuse
from sparloom.ir import BOOL, F32, F64, I32, I64, Const, Expr, Load, Ref, Select, Type, is_name, rebuild, walk
from sparloom.ir import Cast as IrCast

_ORDER = (BOOL, I32, I64, F32, F64)


@dataclass(frozen=True)
class Number:
    """A scalar."""

    expr: Expr
    type: Type


@dataclass(frozen=True)
class ArrayName:
    """An array of the program."""

    name: str


@dataclass(frozen=True)
class Matrix:
    """A sparse argument; its attributes are arrays."""

    name: str


@dataclass(frozen=True)
class Items:
    """A tuple."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class RangeValue:
    """range(lo, hi, step), or fprange if `marked`."""

    lo: Expr
    hi: Expr
    step: int
    marked: bool


@dataclass(frozen=True)
class PythonObject:
    """A module, function or dtype."""

    value: Any


Value = Number | ArrayName | Matrix | Items | RangeValue | PythonObject


def convert(number: Number, type: Type) -> Expr:
    """Convert a number to another type; constants that fit are converted exactly."""
    expr = number.expr
    if number.type == type:
        return expr
    if number.type == BOOL:
        one, zero = (1.0, 0.0) if type in (F32, F64) else (1, 0)
        return Select(expr, Const(one, type), Const(zero, type))
    if isinstance(expr, Const) and (type in (F32, F64) or number.type in (I32, I64)):
        return Const(float(expr.value) if type in (F32, F64) else expr.value, type)
    return IrCast(type, expr)


def widest(*types: Type) -> Type:
    """Return the common type of several types, as in Numba."""
    chosen = max(types, key=_ORDER.index)
    return F64 if chosen == F32 and I64 in types else chosen


def scalar_type(numba_type: Any, location: SourceLocation) -> Type:
    """Translate the Numba type of a scalar or of the elements of an array; refuse what the loop IR does not have."""
    if isinstance(numba_type, types.Literal):
        numba_type = numba_type.literal_type
    known = {types.boolean: BOOL, types.int32: I32, types.int64: I64, types.uint64: I64, types.float32: F32,
             types.float64: F64}
    if numba_type not in known:
        raise refuse(location, f"a value of type {numba_type}: use int32, int64, float32, float64 or bool")
    return known[numba_type]


class Environment:
    """State while one function is read; `groups` are those of `phi_groups`."""

    def __init__(self, ssa: TypedSsa, groups: Mapping[str, str], file: str) -> None:
        self.values: dict[str, Value] = {}
        self.scalars: dict[str, Scalar] = {}
        self.arrays: dict[str, Array] = {}
        self.accesses: list[Access] = []
        self.loops: list[Iterator] = []
        self.storage: dict[str, Number] = {}  # leader of a group -> the declared variable
        self.current: dict[str, str] = {}  # leader of a group -> its current version
        self.definitions: dict[str, Expr] = {}  # immutable names -> their values
        self.allocations, self.marks, self.numba_types = ssa.allocations, ssa.marks, ssa.types
        self._groups = groups
        self._file = file
        self._taken = set(GENERATED)

    def location(self, node: Any) -> SourceLocation:
        """Return the source line of a Numba node."""
        return location_at(self._file, node.loc.line)

    def type(self, variable: Any) -> Type:
        """Return the type of a scalar Numba variable."""
        return scalar_type(self.numba_types[variable.name], self.location(variable))

    def leader(self, variable: Any) -> str | None:
        """Return the leader of the group of a mutable variable; None for an immutable one."""
        return self._groups.get(variable.name)

    def group_type(self, leader: str, location: SourceLocation) -> Type:
        """Return the common type of the versions in a group."""
        versions = [name for name, other in self._groups.items() if other == leader]
        return widest(*(scalar_type(self.numba_types[name], location) for name in versions))

    def fresh(self, wish: str) -> str:
        """Make a new name that is valid in the loop IR and close to `wish`."""
        base = re.sub(r"_+", "_", re.sub(r"\W", "_", wish, flags=re.ASCII)).strip("_")
        base = base if base[:1].isalpha() else f"t{base}"
        name, number = base, 0
        while name in self._taken or not is_name(name):
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def argument(self, name: str, variable: Any) -> Value:
        """Return the value of a parameter of the function."""
        numba_type = self.numba_types[variable.name]
        if isinstance(numba_type, types.Array):
            return self.array_argument((name,), numba_type, variable)
        if isinstance(numba_type, types.BaseNamedTuple):
            return Matrix(name)
        type = scalar_type(numba_type, self.location(variable))
        return Number(self.scalar((name,), type), type)

    def scalar(self, source: tuple[str | int, ...], type: Type) -> Expr:
        """Return a scalar parameter; add it if it is new."""
        key = "_".join(map(str, source))
        if key not in self.scalars:
            self.scalars[key] = Scalar(self.fresh(key), type, source)
        return Ref(self.scalars[key].name)

    def array_argument(self, source: tuple[str, ...], numba_type: Any, node: Any) -> ArrayName:
        """Return an array parameter; add it if it is new."""
        label = ".".join(source)
        if source[1:] in (("p",), ("i",)):  # the limits of their elements
            self.scalar((source[0], "shape", 0), I64)
            self.scalar((source[0], "shape", 1), I64)
            self.scalar((source[0], "i", "shape", 0), I64)
        known = [array.name for array in self.arrays.values() if array.source == source]
        if known:
            return ArrayName(known[0])
        element = scalar_type(numba_type.dtype, self.location(node))
        extents = tuple(self.scalar((*source, "shape", axis), I64) for axis in range(numba_type.ndim))
        return self._add(Array(self.fresh(label), label, element, extents, "argument", source))

    def new_array(self, wish: str, shape: Value, *, allocation: Allocation, location: SourceLocation) -> ArrayName:
        """Add an array that the function allocates."""
        items = shape.values if isinstance(shape, Items) else (shape,)
        if not all(isinstance(item, Number) for item in items):
            raise refuse(location, "the shape is not a tuple of integers: write np.zeros((rows, columns))")
        extents = tuple(convert(item, I64) for item in items)
        element = scalar_type(allocation.type.dtype, location)
        return self._add(Array(self.fresh(wish), wish, element, extents, allocation.origin))

    def rename_array(self, array: ArrayName, wish: str) -> ArrayName:
        """Name an array that was allocated without a name after the variable that it is assigned to."""
        known = self.arrays[array.name]
        if not known.label.startswith("$"):
            return array
        del self.arrays[array.name]
        named = self._add(replace(known, name=self.fresh(wish), label=wish))
        self.values = {name: named if value == array else value for name, value in self.values.items()}
        return named

    def subscripts(self, index: Value, array: str, location: SourceLocation) -> tuple[Expr, ...]:
        """Return the subscripts of an access, one i64 per dimension; slices and negative constants are refused."""
        items = index.values if isinstance(index, Items) else (index,)
        known = self.arrays[array]
        if len(items) != len(known.extents) or not all(isinstance(item, Number) for item in items):
            raise refuse(location, f"{known.label} has {len(known.extents)} dimensions: write one integer for each")
        exprs = tuple(convert(item, I64) for item in items)
        if any(getattr(expr, "value", 0) < 0 for expr in exprs):
            raise refuse(location, f"a negative subscript of {known.label}: count from the front")
        return exprs

    def resolve(self, expr: Expr) -> Expr | None:
        """Replace immutable names by their values; None if a mutable variable occurs."""
        changing = {number.expr for number in self.storage.values()}

        def expand(inner: Expr) -> Expr:
            if isinstance(inner, Ref) and inner.name in self.definitions:
                return expand(self.definitions[inner.name])
            return rebuild(inner, expr=expand, body=lambda body: body)

        expanded = expand(expr)
        return None if any(node in changing for node in walk(expanded)) else expanded

    def enter(self, iterator: Iterator) -> None:
        """Enter a loop."""
        self.loops.append(replace(iterator, lo=self.resolve(iterator.lo), hi=self.resolve(iterator.hi)))

    def access(self, array: str, subscripts: tuple[Expr, ...], *, writes: bool, location: SourceLocation) -> Expr:
        """Record a read or write; return its index into the flattened array."""
        resolved = tuple(self.resolve(expr) for expr in subscripts)
        self.accesses.append(Access(array, resolved, writes, tuple(self.loops), location))
        index = subscripts[0]
        for extent, subscript in zip(self.arrays[array].extents[1:], subscripts[1:], strict=True):
            index = index * extent + subscript
        return index

    def load(self, array: str, index: Value, location: SourceLocation) -> Number:
        """Read one element."""
        at = self.access(array, self.subscripts(index, array, location), writes=False, location=location)
        return Number(Load(array, at), self.arrays[array].type)

    def _add(self, array: Array) -> ArrayName:
        self.arrays[array.name] = array
        return ArrayName(array.name)
