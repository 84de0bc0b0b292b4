"""The raggedness of one batch: lengths, and every table built from them so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sparloom.ir import DTYPES, Expr, Kernel
from sparloom.jit import compile_c
from sparloom.ragged.evaluate import evaluate
from sparloom.ragged.layout import size, volume
from sparloom.ragged.prelude import TableKernel, closure
from sparloom.ragged.tables import At, Length, Order, Table
from sparloom.ragged.tensor import Tensor

__all__ = ["Prelude", "Structure", "length_vector"]


class _Library(Protocol):
    def function(self, name: str) -> Callable[..., None]: ...


class Prelude:
    """Compiled kernels of tables, for any structure.

    Args:
        kernels: as `closure` gives them.
        library: has them all.
    """

    def __init__(self, kernels: Sequence[TableKernel], library: _Library) -> None:
        self.kernels = tuple(kernels)
        self._functions = {each.table: library.function(each.kernel.name) for each in kernels}

    def run(self, made: TableKernel, arguments: Sequence[Any]) -> None:
        """Build one table."""
        self._functions[made.table](*arguments)


class Structure:
    """Lengths of one batch and the tables that operators need of it, each built once.

    Keep it as long as batches have these lengths: all operators and layers share its tables.

    `Structure({lengths: [5, 2, 7]})`; a length without axes that is the extent of another, such as the number of
    batch entries, is taken from the size of that one.

    Args:
        given: by length function, a number or the entries in order of the coordinates, flat.
        compiler: of the kernels that build tables; `sparloom.ir.InterpretedLibrary` needs none.

    Raises:
        ValueError: a length function is missing, of the wrong size, negative, or over its limit.

    Source: CoRa §2 (I1), §7.4 (the prelude is shared by operators and layers). Departure: the prototype builds tables
    per operator.
    """

    def __init__(self, given: Mapping[Length, Any],
                 compiler: Callable[[Sequence[Kernel]], _Library] = compile_c) -> None:
        self._compiler = compiler
        self._given = {length: _entries(length, value) for length, value in given.items()}
        for length, value in list(self._given.items()):
            if len(length.axes) == 1 and isinstance(length.axes[0][1], At):
                count = length.axes[0][1].table
                if isinstance(count, Length) and not count.axes:
                    self._given.setdefault(count, value.size)
        self._tables: dict[Table, np.ndarray | int] = {}
        for length, value in self._given.items():
            self._check(length, value)

    def given(self) -> dict[Length, np.ndarray | int]:
        """Lengths that were given, or follow from those, by function."""
        return dict(self._given)

    def table(self, table: Table) -> np.ndarray | int:
        """Give the entries of a table, flat; a number if it has no axes. It is built if it was not yet.

        Raises:
            ValueError: a length function that it needs was not given.
        """
        if isinstance(table, Length):
            if table not in self._given:
                there = ", ".join(length.name for length in self._given) or "none"
                raise ValueError(f"length function {table.name} was not given to the structure; there are: {there}")
            return self._given[table]
        if table not in self._tables:
            kernels = closure((table,))
            self.prepare(Prelude(kernels, self._compiler([each.kernel for each in kernels])))
        return self._tables[table]

    def prepare(self, prelude: Prelude) -> None:
        """Build the tables of a prelude that are not there yet."""
        for made in prelude.kernels:
            if made.table not in self._tables:
                self._tables[made.table] = self._built(prelude, made)

    def number(self, expr: Expr) -> int:
        """Evaluate an extent that reads no dimension."""
        return int(evaluate(expr, {}, self.table))

    def size(self, tensor: Tensor) -> int:
        """Count the elements of a tensor's storage."""
        return self.number(size(tensor))

    def table_bytes(self) -> int:
        """Count the bytes of the tables that were built, given lengths left out."""
        return sum(each.nbytes for each in self._tables.values() if isinstance(each, np.ndarray))

    def _built(self, prelude: Prelude, made: TableKernel) -> np.ndarray | int:
        entries = self.number(volume(made.table.axes)) if made.table.axes else 1
        built = np.zeros(entries, DTYPES[made.kernel.params[-1].type.scalar])
        prelude.run(made, (*map(self.table, made.reads), built))
        if isinstance(made.table, Order):
            return np.argsort(-built, kind="stable").astype(np.int32)
        return built if made.table.axes else int(built[0])

    def _check(self, length: Length, value: np.ndarray | int) -> None:
        wanted = self.number(volume(length.axes)) if length.axes else 1
        if np.size(value) != wanted:
            raise ValueError(f"length function {length.name} has {np.size(value)} entries: it takes {wanted}, one for "
                             f"every coordinate of {', '.join(dim.name for dim, _ in length.axes) or 'none'}")
        if np.size(value) and np.min(value) < 0:
            raise ValueError(f"length function {length.name} has the entry {np.min(value)}: lengths are at least 0")
        if length.limit is not None and np.size(value) and np.max(value) > self.number(length.limit):
            raise ValueError(f"length function {length.name} has the entry {np.max(value)}, over its limit of "
                             f"{self.number(length.limit)}")


def length_vector(lengths: Any) -> np.ndarray:
    """Take lengths of sequences as an array, any sequence or what else NumPy reads.

    Raises:
        TypeError: no numbers, or rows of different lengths.
        ValueError: not one dimension, or no integers.
    """
    try:
        array = np.asarray(lengths)
    except (TypeError, ValueError) as error:
        raise TypeError(f"lengths of type {type(lengths).__name__} are no vector ({error}): give a vector of integers, "
                        "one per sequence") from error
    if array.dtype.kind in "OSU" or isinstance(lengths, (str, bytes)):
        raise TypeError(f"lengths of type {type(lengths).__name__} hold no integers: give a vector of integers, one "
                        "per sequence")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"lengths are an array of {array.ndim} dimensions of {array.dtype}: give a vector of "
                         f"integers, one per sequence")
    return array if array.size else array.astype(np.int64)


def _entries(length: Length, value: Any) -> np.ndarray | int:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"length function {length.name} is of type {type(value).__name__}, no array ({error}): give "
                         "its entries in order of the coordinates, flat") from error
    if not length.axes and array.size != 1:
        raise ValueError(f"length function {length.name} has {array.size} entries: it takes 1, it has no axes")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"length function {length.name} is {array.dtype}: lengths are integers")
    if array.size and int(array.max()) >= 2**31:
        raise ValueError(f"length function {length.name} has the entry {array.max()}: lengths are below 2^31")
    # a copy: tables are made of these lengths, and programs rely on both
    return np.array(array.reshape(-1), dtype=np.int32) if length.axes else int(array.reshape(()))
