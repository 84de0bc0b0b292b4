"""Sparse operands of fused functions: what `A.p`, `A.i` and `A.x` stand for.

Results found again by the index arrays that they were made from.
"""

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
    """A sparse matrix in the words of Listing 1: row r holds the nonzeros p[r] to p[r + 1] of i (columns) and x.

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
    """View a sparse matrix as Csr, without a copy where it is in CSR already.

    Args:
        matrix: SparseMatrix, Pattern (ones in float32), SciPy matrix of any format, or Csr.
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
    """Check what compiled code relies on; takes time in proportion to the nonzeros.

    Raises:
        ValueError: the row pointers do not rise from 0 to nnz, or a column is outside the matrix.
    """
    rows, cols = matrix.shape
    p, i = matrix.p, matrix.i
    if p.shape != (rows + 1,) or p[0] != 0 or p[-1] != i.size or (p[1:] < p[:-1]).any() or i.shape != matrix.x.shape:
        raise ValueError(f"row pointers of {name}, {rows} rows and {i.size} nonzeros, must be {rows + 1} numbers that "
                         f"rise from 0 to {i.size}, with one value per nonzero")
    if i.size and not 0 <= i.min() <= i.max() < cols:
        raise ValueError(f"columns of {name} run from {i.min()} to {i.max()}: they must lie in 0 to {cols - 1}")


CAPACITY = 64

Made = TypeVar("Made")


class IdentityCache(Generic[Made]):
    """Remembers what was made for arguments, as long as their index arrays live.

    Arrays are known by identity, so that a call costs nothing in proportion to their size: an index array must not be
    changed in place between calls.

    Args:
        capacity: results; with one more, the oldest is forgotten.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._known: OrderedDict[tuple[Any, ...], tuple[tuple[weakref.ref, ...], Made]] = OrderedDict()

    def find(
        self, arguments: Mapping[str, Any], make: Callable[[], Made], arrays: Sequence[Any] | None = None,
    ) -> Made:
        """Return what was made for arguments with these index arrays, shapes and numbers, or make it.

        Args:
            arrays: index arrays that are not NumPy's, beside arguments without any.
        """
        arrays = _index_arrays(arguments) if arrays is None else arrays
        key = self._key(arrays, arguments)
        references, made = self._known.get(key, (None, None))
        if references is None or any(ref() is not array for ref, array in zip(references, arrays, strict=True)):
            made = make()
            self._known[key] = (tuple(map(weakref.ref, arrays)), made)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return made

    def review(self, arrays: Sequence[Any], fits: Callable[[Made], bool]) -> None:
        """Forget what was made for these index arrays, whatever else the arguments were, and does not fit them now."""
        begin = tuple(map(id, arrays))
        for key, (_, made) in list(self._known.items()):
            if key[:len(begin)] == begin and not fits(made):
                self._known.pop(key, None)

    def _key(self, arrays: Sequence[Any], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        return (*map(id, arrays), *(_description(value) for value in arguments.values()))


def _index_arrays(arguments: Mapping[str, Any]) -> list[np.ndarray]:
    found = []
    for value in arguments.values():
        parts = (value.p, value.i) if isinstance(value, Csr) else (value,)
        found += [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    return found


def _description(value: Any) -> Any:
    """What of an argument, other than the content of index arrays, a graph and its tiles depend on."""
    if isinstance(value, Csr):
        return value.shape, str(value.x.dtype)
    return (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else value
