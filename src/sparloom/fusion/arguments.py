"""Arguments of fused functions: sparse operands with `A.p`, `A.i`, `A.x`, and a cache keyed by their identity."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import scipy.sparse

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Csr", "IdentityCache", "check_csr", "csr"]


class Csr(NamedTuple):
    """A sparse matrix with the attributes of Listing 1: row r holds the nonzeros p[r] to p[r + 1] of i (columns) and x.

    Args:
        p: (rows + 1,) int32 or int64.
        i: (nnz,) int32 or int64.
        x: (nnz,) float32 or float64.
    """

    p: np.ndarray
    i: np.ndarray
    x: np.ndarray
    shape: tuple[int, int]


def csr(matrix: Any) -> Csr:
    """View a sparse matrix as Csr, without a copy if it is in CSR already.

    Args:
        matrix: SparseMatrix, Pattern (values are float32 ones), SciPy matrix of any format, or Csr.
    """
    match matrix:
        case Csr():
            return matrix
        case SparseMatrix():
            pattern = matrix.pattern
            return Csr(pattern.indptr, pattern.indices, matrix.values, pattern.shape)
        case Pattern():
            return Csr(matrix.indptr, matrix.indices, np.ones(matrix.nnz, np.float32), matrix.shape)
    rows = matrix if getattr(matrix, "format", None) == "csr" else scipy.sparse.csr_array(matrix)
    return Csr(rows.indptr, rows.indices, rows.data, rows.shape)


def check_csr(matrix: Csr, name: str) -> None:
    """Check what compiled code relies on, in time proportional to the nonzeros.

    Raises:
        ValueError: the row pointers do not increase from 0 to nnz, or a column is outside the matrix.
    """
    rows, cols = matrix.shape
    p, i = matrix.p, matrix.i
    if p.shape != (rows + 1,) or p[0] != 0 or p[-1] != i.size or (p[1:] < p[:-1]).any() or i.shape != matrix.x.shape:
        raise ValueError(f"row pointers of {name}, {rows} rows and {i.size} nonzeros, must be {rows + 1} numbers that "
                         f"rise from 0 to {i.size}, with one value per nonzero")
    if i.size and not 0 <= i.min() <= i.max() < cols:
        raise ValueError(f"columns of {name} run from {i.min()} to {i.max()}: they must lie in 0 to {cols - 1}")


CAPACITY = 64

Value = TypeVar("Value")


class IdentityCache(Generic[Value]):
    """Cache of values computed from index arrays, keyed by the identity of these arrays, which it references weakly.

    The cost of a lookup does not depend on the size of the arrays. In return, an index array must not be changed in
    place between calls.

    Args:
        capacity: maximum number of entries; the oldest is evicted.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[Any, ...], tuple[tuple[weakref.ref, ...], Value]] = OrderedDict()

    def get(
        self, arguments: Mapping[str, Any], make: Callable[[], Value], arrays: Sequence[Any] | None = None,
    ) -> Value:
        """Return the value for arguments with these index arrays, shapes and scalars; make it if it is missing.

        Args:
            arrays: the index arrays, where they are not NumPy arrays among the arguments.
        """
        arrays = _index_arrays(arguments) if arrays is None else arrays
        key = self._key(arrays, arguments)
        references, value = self._entries.get(key, (None, None))
        if references is None or any(ref() is not array for ref, array in zip(references, arrays, strict=True)):
            value = make()
            self._entries[key] = (tuple(map(weakref.ref, arrays)), value)
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        return value

    def invalidate(self, arrays: Sequence[Any], is_valid: Callable[[Value], bool]) -> None:
        """Drop the entries for these index arrays, whatever the other arguments, that are no longer valid."""
        prefix = tuple(map(id, arrays))
        for key, (_, value) in list(self._entries.items()):
            if key[:len(prefix)] == prefix and not is_valid(value):
                self._entries.pop(key, None)

    def _key(self, arrays: Sequence[Any], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        return (*map(id, arrays), *(_description(value) for value in arguments.values()))


def _index_arrays(arguments: Mapping[str, Any]) -> list[np.ndarray]:
    found = []
    for value in arguments.values():
        parts = (value.p, value.i) if isinstance(value, Csr) else (value,)
        found += [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    return found


def _description(value: Any) -> Any:
    """Return the part of the key for one argument: its shape and type, or its value if it is a scalar."""
    if isinstance(value, Csr):
        return value.shape, str(value.x.dtype)
    return (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else value
