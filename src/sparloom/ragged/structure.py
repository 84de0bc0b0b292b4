"""Batches: lengths with the tables built from them (`Structure`), and values of ragged tensors (`RaggedTensor`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sparloom.ir import DTYPES, Expr, Kernel, Ref
from sparloom.jit import compile_c
from sparloom.ragged.dimensions import Axis, expand, free_names
from sparloom.ragged.layout import (
    evaluate,
    evaluate_offset,
    largest_extent,
    offset_steps,
    storage_size,
    stored_dims,
    volume,
)
from sparloom.ragged.nests import Loop, Nest, Program
from sparloom.ragged.table_code import TableKernel, prelude_kernels
from sparloom.ragged.tensor import At, Length, Order, Table, Tensor


class _Library(Protocol):
    def function(self, name: str) -> Callable[..., None]: ...


class Prelude:
    """Compiled kernels of tables, for any structure.

    Args:
        kernels: result of `prelude_kernels`.
        library: compiled library that contains them.
    """

    def __init__(self, kernels: Sequence[TableKernel], library: _Library) -> None:
        self.kernels = tuple(kernels)
        self._functions = {each.table: library.function(each.kernel.name) for each in kernels}

    def run(self, kernel: TableKernel, arguments: Sequence[Any]) -> None:
        """Build one table."""
        self._functions[kernel.table](*arguments)


class Structure:
    """Lengths of one batch and the tables that operators derive from them, each built once.

    Reuse it as long as batches have these lengths: all operators and layers share its tables, and so may threads.

    `Structure({lengths: [5, 2, 7]})`; a length without axes that is the extent of another one, such as the number of
    batch items, is inferred from the size of that one.

    Args:
        lengths: for each length function a number, or its entries as a flat array in order of the coordinates.
        compiler: compiles the kernels that build tables; `sparloom.ir.InterpretedLibrary` needs no compiler.

    Raises:
        ValueError: a length function is missing, of the wrong size, negative, or over its limit.

    Source: CoRa §2 (I1), §7.4 (the prelude is shared by operators and layers). Departure: the prototype builds tables
    per operator.
    """

    def __init__(self, lengths: Mapping[Length, Any],
                 compiler: Callable[[Sequence[Kernel]], _Library] = compile_c) -> None:
        self._compiler = compiler
        self._lengths = {length: _entries(length, value) for length, value in lengths.items()}
        for length, value in list(self._lengths.items()):
            if len(length.axes) == 1 and isinstance(length.axes[0][1], At):
                count = length.axes[0][1].table
                if isinstance(count, Length) and not count.axes:
                    self._lengths.setdefault(count, value.size)
        self._tables: dict[Table, np.ndarray | int] = {}
        for length, value in self._lengths.items():
            self._check(length, value)

    def lengths(self) -> dict[Length, np.ndarray | int]:
        """Return the lengths by function, including inferred ones."""
        return dict(self._lengths)

    def table(self, table: Table) -> np.ndarray | int:
        """Return the entries of a table as a flat array, or a number if it has no axes; build it if necessary."""
        if isinstance(table, Length):
            if table not in self._lengths:
                there = ", ".join(length.name for length in self._lengths) or "none"
                raise ValueError(f"length function {table.name} was not given to the structure; there are: {there}")
            return self._lengths[table]
        if table not in self._tables:
            kernels = prelude_kernels((table,))
            self.prepare(Prelude(kernels, self._compiler([each.kernel for each in kernels])))
        return self._tables[table]

    def prepare(self, prelude: Prelude) -> None:
        """Build the tables of a prelude that do not exist yet; none is ever replaced, as programs keep addresses."""
        for kernel in prelude.kernels:
            if kernel.table not in self._tables:  # else the table of the thread that was first is used by all
                self._tables.setdefault(kernel.table, self._build(prelude, kernel))

    def number(self, expr: Expr) -> int:
        """Evaluate an extent that reads no dimension."""
        return int(evaluate(expr, {}, self.table))

    def size(self, tensor: Tensor) -> int:
        """Count the elements of a tensor's storage."""
        return self.number(storage_size(tensor))

    def table_bytes(self) -> int:
        """Count the bytes of the tables built so far, without the given lengths."""
        return sum(each.nbytes for each in list(self._tables.values()) if isinstance(each, np.ndarray))

    def _build(self, prelude: Prelude, kernel: TableKernel) -> np.ndarray | int:
        entries = self.number(volume(kernel.table.axes)) if kernel.table.axes else 1
        built = np.zeros(entries, DTYPES[kernel.kernel.params[-1].type.scalar])
        prelude.run(kernel, (*map(self.table, kernel.reads), built))
        if isinstance(kernel.table, Order):
            return np.argsort(-built, kind="stable").astype(np.int32)
        return built if kernel.table.axes else int(built[0])

    def _check(self, length: Length, value: np.ndarray | int) -> None:
        expected = self.number(volume(length.axes)) if length.axes else 1
        if np.size(value) != expected:
            raise ValueError(f"length function {length.name} has {np.size(value)} entries: it takes {expected}, one "
                             f"for every coordinate of {', '.join(dim.name for dim, _ in length.axes) or 'none'}")
        if np.size(value) and np.min(value) < 0:
            raise ValueError(f"length function {length.name} has the entry {np.min(value)}: lengths are at least 0")
        if length.limit is not None and np.size(value) and np.max(value) > self.number(length.limit):
            raise ValueError(f"length function {length.name} has the entry {np.max(value)}, over its limit of "
                             f"{self.number(length.limit)}")


def length_vector(lengths: Any) -> np.ndarray:
    """Convert lengths of sequences to an array."""
    try:
        array = np.asarray(lengths)
    except (TypeError, ValueError) as error:
        raise TypeError(f"lengths of type {type(lengths).__name__} are not a vector ({error}): give a vector of "
                        "integers, one per sequence") from error
    if array.dtype.kind in "OSU" or isinstance(lengths, (str, bytes)):
        raise TypeError(f"lengths of type {type(lengths).__name__} are not integers: give a vector of integers, one "
                        "per sequence")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"lengths are an array of {array.ndim} dimensions of {array.dtype}: give a vector of "
                         f"integers, one per sequence")
    return array if array.size else array.astype(np.int64)


def _entries(length: Length, value: Any) -> np.ndarray | int:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"length function {length.name} is of type {type(value).__name__}, not an array ({error}): "
                         "give its entries in order of the coordinates, flat") from error
    if not length.axes and array.size != 1:
        raise ValueError(f"length function {length.name} has {array.size} entries: it takes 1, it has no axes")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"length function {length.name} is {array.dtype}: lengths are integers")
    if array.size and int(array.max()) >= 2**31:
        raise ValueError(f"length function {length.name} has the entry {array.max()}: lengths are below 2^31")
    # copy: programs rely on lengths and tables that agree
    return np.array(array.reshape(-1), dtype=np.int32) if length.axes else int(array.reshape(()))


@dataclass(frozen=True, eq=False)
class RaggedTensor:
    """Storage of a tensor for one structure.

    Args:
        data: (structure.size(tensor),) of the tensor's type; values in padding are undefined.
    """

    tensor: Tensor
    structure: Structure
    data: np.ndarray

    def __post_init__(self) -> None:
        expected, dtype = self.structure.size(self.tensor), np.dtype(DTYPES[self.tensor.type.scalar])
        if self.data.size != expected or self.data.dtype != dtype:
            raise ValueError(f"tensor {self.tensor.name} from {self.data.size} {self.data.dtype}: its storage has "
                             f"{expected} elements of {dtype}")
        object.__setattr__(self, "data", self.data.reshape(-1))

    @classmethod
    def zeros(cls, tensor: Tensor, structure: Structure) -> RaggedTensor:
        """Make a tensor whose elements and padding are 0."""
        return cls(tensor, structure, np.zeros(structure.size(tensor), DTYPES[tensor.type.scalar]))

    @classmethod
    def from_padded(cls, tensor: Tensor, structure: Structure, padded: np.ndarray) -> RaggedTensor:
        """Copy the elements of a dense array.

        Args:
            padded: array with the tensor's number of dimensions, each at least as long as its largest slice.

        Raises:
            ValueError: an extent is too small.
        """
        result = cls.zeros(tensor, structure)
        found, flat = element_offsets(tensor, structure)
        shape = result._largest()
        if padded.ndim != len(shape) or any(has < needs for has, needs in zip(padded.shape, shape, strict=True)):
            raise ValueError(f"tensor {tensor.name} from an array of shape {padded.shape}: it needs at least {shape}")
        result.data[flat] = padded[tuple(found.values())]
        return result

    def to_padded(self, fill: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Make a dense array and its mask.

        Args:
            fill: value where there is no element.

        Returns:
            Array of the largest extents, and bool array that is true where there is an element; the mask has the
            dimensions up to the last that varies, to be broadcast over the remaining ones.
        """
        found, flat = element_offsets(self.tensor, self.structure)
        shape = self._largest()
        padded = np.full(shape, fill, self.data.dtype)
        padded[tuple(found.values())] = self.data[flat]
        mask = np.zeros(shape[: _varying(self.tensor)], dtype=bool)
        mask[tuple(found.values())[: mask.ndim]] = True
        return padded, mask

    @classmethod
    def from_packed(cls, tensor: Tensor, structure: Structure, packed: np.ndarray) -> RaggedTensor:
        """Copy elements given in order without padding: (tokens, ..) of FlashAttention's varlen form, or flat.

        Raises:
            ValueError: the number of elements differs from the tensor's.
        """
        result = cls.zeros(tensor, structure)
        _, flat = element_offsets(tensor, structure)
        if packed.size != flat.size:
            raise ValueError(f"tensor {tensor.name} from {packed.size} packed elements: it has {flat.size}")
        result.data[flat] = packed.reshape(-1)
        return result

    def to_packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements in order without padding.

        Returns:
            Array (slices of the last varying dimension, constant extents..), and cu_seqlens: int32 starts of the
            slices of the last varying dimension, followed by their total.
        """
        flat, axes, varying = element_offsets(self.tensor, self.structure)[1], self.tensor.axes, _varying(self.tensor)
        trailing = [int(self.structure.number(extent)) for _, extent in axes[varying:]]
        packed = self.data[flat].reshape(-1, *trailing) if flat.size else np.empty((0, *trailing), self.data.dtype)
        starts = np.zeros(1, dtype=np.int32)
        if varying:
            before = coordinates(axes[: varying - 1], self.structure)
            extents = evaluate(axes[varying - 1][1], before, self.structure.table)
            starts = np.concatenate(([0], np.cumsum(extents))).astype(np.int32)
        return packed, starts

    def slice(self, *coordinate: int) -> np.ndarray:
        """Copy the elements at coordinates of the first dimensions, as a dense array over the others."""
        fixed = {dim.name: value for (dim, _), value in zip(self.tensor.axes, coordinate, strict=False)}
        shape = []
        for number, (dim, extent) in enumerate(self.tensor.axes):
            if free_names(extent) - set(fixed):
                raise ValueError(f"tensor {self.tensor.name} has no dense slice at {coordinate}: the extent of "
                                 f"{dim.name} varies inside: use to_padded()")
            length = int(evaluate(extent, fixed, self.structure.table))
            if number >= len(coordinate):
                shape.append(length)
            elif not 0 <= coordinate[number] < length:
                raise ValueError(f"tensor {self.tensor.name} has no slice at {coordinate}: {dim.name} has {length}")
        found, flat = element_offsets(self.tensor, self.structure)
        chosen = np.ones(flat.size, dtype=bool)
        for name, value in fixed.items():
            chosen &= found[name] == value
        return self.data[flat[chosen]].reshape(shape)

    def stored_as(self, tensor: Tensor) -> RaggedTensor:
        """Copy the elements to another storage of the same tensor."""
        result = RaggedTensor.zeros(tensor, self.structure)
        target, source = (element_offsets(each, self.structure)[1] for each in (tensor, self.tensor))
        result.data[target] = self.data[source]
        return result

    def _largest(self) -> tuple[int, ...]:
        axes = self.tensor.axes
        return tuple(self.structure.number(largest_extent(extent, axes)) for _, extent in axes)


def coordinates(axes: Sequence[Axis], structure: Structure) -> dict[str, np.ndarray]:
    """List the coordinates of all elements in order, without padding: an int64 array per dimension."""
    found: dict[str, np.ndarray] = {}
    count = 1
    for dim, extent in axes:
        extents = np.broadcast_to(np.asarray(evaluate(extent, found, structure.table), dtype=np.int64), (count,))
        ends = np.cumsum(extents)
        count = int(ends[-1]) if ends.size else 0
        found = {name: np.repeat(values, extents) for name, values in found.items()}
        found[dim.name] = np.arange(count) - np.repeat(ends - extents, extents)
    return found


def element_offsets(tensor: Tensor, structure: Structure) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return coordinates and flat indices of all elements."""
    found = coordinates(tensor.axes, structure)
    count = next(iter(found.values())).size if found else 1
    stored = stored_dims(tensor)
    at = {dim.name: evaluate(expr, found, structure.table)
          for (dim, _), expr in zip(stored.axes, stored.coordinates, strict=True)}
    flat = evaluate_offset(offset_steps(tensor), at, structure.table)
    return found, np.broadcast_to(np.asarray(flat, dtype=np.int64), (count,))


def iterations(program: Program, structure: Structure) -> dict[str, int]:
    """Count the iterations of every nest as scheduled, including padding and recomputation.

    Returns:
        Iterations by name of the nest; for a reduction, the number of updates.
    """
    found: dict[str, int] = {}
    for launch in program.launches:
        for nest in launch.nests:
            _count(nest, (), {}, structure=structure, found=found)
    return found


def _count(nest: Nest, around: tuple[Loop, ...], defined: Mapping[str, Expr], *, structure: Structure,
           found: dict[str, int]) -> None:
    known = {**defined, **dict(nest.defined)}
    axes = [(Ref(loop.name), expand(loop.extent, known)) for loop in (*around, *nest.loops)]
    found[nest.name] = _volume(axes, structure)
    for at, each in nest.attached:
        _count(each, (*around, *nest.loops[: nest.position(at) + 1]), known, structure=structure, found=found)


def _volume(axes: Sequence[Axis], structure: Structure) -> int:
    """Sum over the loops on which other extents depend; the remaining extents are factors."""
    read = {name for _, extent in axes for name in free_names(extent)}
    found = coordinates([axis for axis in axes if axis[0].name in read], structure)
    counts = np.ones(next((values.size for values in found.values()), 1), dtype=np.int64)
    for dim, extent in axes:
        if dim.name not in read:
            counts = counts * evaluate(extent, found, structure.table)
    return int(counts.sum())


def _varying(tensor: Tensor) -> int:
    """Count the dimensions up to the last one that varies with another."""
    return max((number + 1 for number, (_, extent) in enumerate(tensor.axes) if free_names(extent)), default=0)
